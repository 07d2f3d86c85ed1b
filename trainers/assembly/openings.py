"""The openings of tasks in tokens: one is tried before anything starts, and those that are too long can be left out."""

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


async def try_openings(config: PPOConfig, renderer: Renderer, positions: int | None) -> list[str]:
    """Play the opening of the first task of training and of validation, and see whether it leaves room for a reply.

    Args:
        config: Of the run.
        renderer: Of its model.
        positions: The longest context that the model was made for; ``None`` where that is not known.

    Returns:
        Lines on how long they are.

    Raises:
        SetupError: An opening cannot be played or rendered, or the lengths do not go together; the message names the
            key to change.
    """
    context, reply = config.engine.max_context, config.rollout.max_response_length
    if positions is not None and context > positions:
        raise SetupError(
            f"engine.max_context={context} is more than the {positions} positions of model.path={config.model.path}: "
            f"give at most engine.max_context={positions}"
        )
    lengths: dict[str, int] = {}
    for which, task in (("training", 0), ("validation", validation_tasks(config).start)):
        async with backend_of(config, validation=which == "validation", here=True) as backend:
            measured = await measure(backend, renderer, [task], seed=config.trainer.seed)
        name = f"the opening of {which} task {task}"
        if measured.failed:
            raise SetupError(f"{name} of env.id={config.env.id} cannot be played: {measured.failed[task]}")
        lengths[name] = measured.lengths[task]
    name, length = max(lengths.items(), key=lambda each: each[1])
    if length + reply > context and not config.data.filter_overlong_prompts:
        raise SetupError(
            f"{name} of env.id={config.env.id} has {length:,} tokens, and with a reply of "
            f"rollout.max_response_length={reply} it does not fit engine.max_context={context}: "
            + _larger_context(config, length, positions)
        )
    return [f"{each} has {tokens} tokens, of engine.max_context={context}" for each, tokens in lengths.items()]


def _larger_context(config: PPOConfig, length: int, positions: int | None) -> str:
    """What to change so that an opening of so many tokens fits."""
    needed = length + config.rollout.max_response_length
    if positions is not None and needed > positions:
        return f"the model has {positions} positions, so this environment needs another model, or other env.kwargs"
    micro_batch = config.actor.max_tokens_per_micro_batch
    more = f" and actor.max_tokens_per_micro_batch (now {micro_batch})" if needed > micro_batch else ""
    return f"raise engine.max_context{more} to {needed} at least, and further for the turns that follow"


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
