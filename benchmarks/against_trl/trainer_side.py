"""This side: the collector, the torch engine and the learner."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from trainers.config.engine import TorchEngineSection
from trainers.config.model import ModelSection
from trainers.config.rollout import RolloutSection
from trainers.engines.base import Engine, Generation, Sampling
from trainers.engines.torch_engine import TorchEngine
from trainers.engines.transport import LocalSource
from trainers.learner import Learner
from trainers.rollout.collector import Collector
from trainers.rollout.environments import Backend, EnvSpec
from trainers.rollout.renderer import Renderer
from trainers.section import ActorSection
from trainers.trajectory import Trajectory

from .work import LR, Clock, Talk, Work, columns, surrogate


class Forced:
    """An engine whose replies have prescribed lengths."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._rows: Iterator[NDArray[np.int64]] = iter(())
        self._remaining: dict[str, list[int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def force(self, lengths: NDArray[np.int64]) -> None:
        """Set lengths, ``[episodes, turns]``: the next episodes get a row each, as they begin."""
        self._rows, self._remaining = iter(lengths), {}

    async def generate(self, token_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Generation:
        """Generate a reply of this session's next length."""
        assert session is not None
        if session not in self._remaining:
            self._remaining[session] = next(self._rows).tolist()[::-1]
        forced = replace(sampling, max_new_tokens=self._remaining[session].pop(), ignore_stop=True)
        return await self.engine.generate(token_ids, forced, session)


class Ours:
    """The collector, the torch engine and the learner; one iteration at a time.

    Args:
        model: Where to start; copied.
        tokenizer: Its tokenizer.
        work: The work of an iteration.
        threads: For the engine and the learner.
        micro_batch: Tokens of a micro-batch at most.
        running: Episodes in flight at most.
        clock: For seconds.
        device: For the engine and the learner.
        bfloat16: Compute in it; the optimizer keeps float32 weights.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        work: Work,
        threads: int,
        micro_batch: int,
        running: int,
        clock: Clock,
        device: Literal["cpu", "cuda"] = "cpu",
        bfloat16: bool = False,
    ) -> None:
        self._clock = clock
        self._work, self._loop = work, asyncio.new_event_loop()
        section = ModelSection(device=device, dtype="bfloat16" if bfloat16 else "float32")
        self.learner = Learner(model, section, actor=ActorSection(lr=LR, max_tokens_per_micro_batch=micro_batch))
        context = work.turns * (work.longest + 64) + 64
        self._engine = TorchEngine(
            model,
            TorchEngineSection(max_slots=min(running, work.episodes), max_context=context, threads=threads),
            device=device,
            dtype=torch.bfloat16 if bfloat16 else None,
        )
        self._forced = Forced(self._engine)
        self._backend = Backend(EnvSpec(lambda: Talk(work.turns)))
        self._collector = Collector(
            self._forced,
            Renderer(tokenizer),
            self._backend,
            tasks=lambda group: group % work.tasks,
            rollout=RolloutSection(
                n=work.group,
                groups_per_batch=work.tasks,
                max_running=min(running, work.episodes),
                max_response_length=256,
                generation_timeout_s=None,
                episode_timeout_s=None,
            ),
        )

    def collect(self, lengths: NDArray[np.int64]) -> list[Trajectory]:
        """Return the episodes of one iteration."""
        self._forced.force(lengths)
        trajectories = self._loop.run_until_complete(self._collector.next_batch()).trajectories
        assert sum(int(t.action_mask.sum()) for t in trajectories) == lengths.sum()
        return trajectories

    def learn(self, trajectories: Sequence[Trajectory]) -> None:
        """Take one step, and send the new weights to the engine."""
        self.learner.update_actor(trajectories, columns(trajectories), surrogate)
        stream = self.learner.publication("weights")
        weights = LocalSource(stream.specs, lambda: stream.read(self.learner.ranks))
        self._loop.run_until_complete(self._collector.update_weights(weights, self._engine.version + 1))

    def iterate(self, number: int) -> dict[str, float]:
        """Run an iteration; return the seconds of its parts."""
        began = self._clock()
        trajectories = self.collect(self._work.lengths(number))
        collected = self._clock()
        self.learn(trajectories)
        return {"generate": collected - began, "update": self._clock() - collected}

    def close(self) -> None:
        for part in (self._collector, self._backend, self._engine):
            self._loop.run_until_complete(part.close())
        self._loop.close()
        if torch.distributed.is_initialized():  # of learners in bfloat16; TRL would take it for its own
            torch.distributed.destroy_process_group()
