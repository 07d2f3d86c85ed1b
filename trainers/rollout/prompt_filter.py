"""How long the openings of tasks are in tokens, so that those that do not fit can be left out beforehand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .environments import Backend, EnvError
from .renderer import Renderer, RendererError
from .tasks import derive_seed

_AT_ONCE = 64  # environments, where their backend has no limit of its own


@dataclass(frozen=True)
class Measured:
    """What became of the tasks.

    Args:
        lengths: Tokens of the openings by task, up to the point where the model speaks.
        failed: Why the opening of a task is not known, by task.
    """

    lengths: dict[int, int]
    failed: dict[int, str]

    def longer_than(self, limit: int) -> frozenset[int]:
        """The tasks whose openings have more tokens than this."""
        return frozenset(task for task, length in self.lengths.items() if length > limit)


async def measure(backend: Backend, renderer: Renderer, tasks: Sequence[int], *, seed: int) -> Measured:
    """Begin an episode of each task, and count the tokens that its opening is rendered in.

    It costs a reset and a rendering a task. The environment's seed is a function of ``seed`` and the task, so the same
    tasks are long every time; an opening that is drawn by the episode's seed may be longer in another episode.

    Args:
        backend: Of the environments; as many at a time as it allows.
        renderer: Of the model.
        tasks: Their indices.
        seed: The run's.
    """
    lengths: dict[int, int] = {}
    failed: dict[int, str] = {}
    waiting: Iterator[int] = iter(tasks)

    async def work() -> None:
        for task in waiting:
            try:
                async with backend.lease() as env:
                    env_seed = derive_seed(seed, "opening", task, bits=32)
                    conversation, _ = await env.reset(env_seed, {"task_index": task})
                lengths[task] = len(renderer.render(conversation, backend.tools))
            except (EnvError, RendererError) as error:
                failed[task] = str(error)

    await asyncio.gather(*(work() for _ in range(min(len(tasks), backend.workers or _AT_ONCE))))
    return Measured(dict(sorted(lengths.items())), dict(sorted(failed.items())))
