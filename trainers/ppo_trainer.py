"""``ppo``: the package's own loop as a :class:`trainers.Trainer`; ``python -m trainers.ppo`` runs it, too."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

from .cli import Interrupts
from .command_line import resolve
from .config import PPOConfig
from .registry import Result

T = TypeVar("T")


class PPOTrainer(AbstractContextManager["PPOTrainer"]):
    """One run of :mod:`trainers.ppo`. It keeps no state between calls: a run resumes from its folder's checkpoint.

    ``config`` are arguments as on the command line, or a ``PPOConfig``; ConfigError lists all problems.
    """

    def __init__(self, config: PPOConfig | Sequence[str] = ()) -> None:
        self.config: PPOConfig = config if isinstance(config, PPOConfig) else resolve(config)[0]
        self._trained: Path | None = None
        from . import ppo  # it imports torch, which takes seconds: report a wrong key first

        self._ppo = ppo

    def fit(self) -> Result:
        """Train; see :class:`trainers.Trainer`. In the main thread Ctrl-C and SIGTERM act as for the command.

        With ``trainer.val_only`` it validates and trains nothing; the model is then the resumed checkpoint's, if any.
        """
        return _wait_for(self._fit())

    def evaluate(self) -> Mapping[str, float]:
        """Return the metrics of a validation, ``val/...``; see :class:`trainers.Trainer`."""
        return _wait_for(self._evaluate())

    def close(self) -> None:
        """Do nothing: a run closes its parts when it ends."""

    def __exit__(self, *exception: object) -> None:
        self.close()

    async def _fit(self) -> Result:
        ppo = self._ppo
        ppo.disable_progress_bar()  # transformers' own, for every file it reads or writes
        async with AsyncExitStack() as stack:
            interrupts = stack.enter_context(Interrupts())
            interrupts.attach()
            run = await stack.enter_async_context(ppo.assemble(self.config))
            interrupts.save_first(run.stop)
            if self.config.trainer.val_only or run.finished:
                await ppo.validate(run)
            else:
                await ppo.train(run)
            run.reporter.conclude(run.trained_s, conversations=not run.stop.is_set())
            # Nothing was saved if it was stopped before the first step, or was finished when it resumed from elsewhere.
            saved = None if self.config.trainer.val_only else run.saved.newest_path()
            trained = self._trained = saved or run.resumed_from
            model = None if trained is None else trained / "model"
            return Result(dict(run.reporter.latest), model, trained, run.iteration, run.stop.is_set())

    async def _evaluate(self) -> Mapping[str, float]:
        ppo = self._ppo
        ppo.disable_progress_bar()
        overrides: dict[str, Any] = {
            "logger": tuple(logger for logger in self.config.trainer.logger if logger == "console")
        }
        overrides["val_only"] = True  # it leaves the folder unchanged
        if self._trained is not None and self.config.trainer.resume_mode != "auto":
            overrides |= {"resume_mode": "resume_path", "resume_from_path": str(self._trained)}
        config = self.config.model_copy(update={"trainer": self.config.trainer.model_copy(update=overrides)})
        async with ppo.assemble(config) as run:
            await ppo.validate(run)
            return dict(run.reporter.latest)


def _wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Return a coroutine's result, also if the caller's thread already runs an event loop (a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()
