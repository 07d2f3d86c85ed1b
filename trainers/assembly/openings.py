"""Tasks that are left out because their openings are too long (``data.filter_overlong_prompts``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..config.schema import PPOConfig
from ..rollout.openings import measure
from ..rollout.renderer import Renderer
from .environments import backend_of, task_count, validation_tasks
from .errors import SetupError


@dataclass(frozen=True)
class Overlong:
    """The indices of tasks that are not played."""

    training: frozenset[int] = frozenset()
    validation: frozenset[int] = frozenset()


async def overlong_of(config: PPOConfig, renderer: Renderer, say: Callable[[str], None]) -> Overlong:
    """Which tasks to leave out; none without ``data.filter_overlong_prompts``.

    Args:
        config: Of the run.
        renderer: Of its model.
        say: Is told how many there are.

    Raises:
        SetupError: The set of training tasks is endless, or nothing of a set is left.
    """
    if not config.data.filter_overlong_prompts:
        return Overlong()
    if (size := task_count(config)) is None:
        raise SetupError(
            f"data.filter_overlong_prompts measures every task before the training, and those of {config.env.id} never "
            "end: give data.train_size=N to play the first N alone, or data.train_files, or leave it off"
        )
    return Overlong(
        await _overlong(config, renderer, range(size), say, validation=False),
        await _overlong(config, renderer, validation_tasks(config), say, validation=True),
    )


def longest_prompt(config: PPOConfig) -> int:
    """The limit: as configured, else what leaves room for one reply of the greatest length."""
    given = config.data.longest_prompt
    return config.engine.max_context - config.rollout.max_response_length if given is None else given


async def _overlong(
    config: PPOConfig, renderer: Renderer, tasks: range, say: Callable[[str], None], *, validation: bool
) -> frozenset[int]:
    which, limit = "validation" if validation else "training", longest_prompt(config)
    async with backend_of(config, validation=validation, here=True) as backend:
        measured = await measure(backend, renderer, tasks, seed=config.trainer.seed)
    found = measured.longer_than(limit)
    if len(found) == len(tasks):
        raise SetupError(
            f"data.filter_overlong_prompts leaves no {which} task: the openings of all {len(tasks)} have more than "
            f"{limit} tokens, the shortest {min(measured.lengths.values())}: raise engine.max_context, or "
            "data.longest_prompt where that is given"
        )
    say(f"{len(found)} of {len(tasks)} {which} tasks are left out: their openings have more than {limit} tokens")
    if measured.failed:
        task, why = next(iter(measured.failed.items()))
        say(f"{len(measured.failed)} {which} tasks could not be opened, and stay in; task {task}: {why}")
    return found
