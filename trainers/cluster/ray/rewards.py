"""A reward model in a Ray actor: a worker of :class:`trainers.rewards.backends.ReplicaPool`.

An actor that dies is a worker that is lost: its batch goes to another, and a new actor is made in its place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from textenvs.messages import Messages
from trainers.cluster.rank import Failure
from trainers.cluster.ray.ranks import said
from trainers.cluster.ray.runtime import import_ray
from trainers.rewards import BackendError
from trainers.rewards.backends.classifier import Classifier, ClassifierOptions
from trainers.rewards.backends.replicas import ReplicaLostError


class _RewardActor:
    """The actor: methods return a :class:`Failure`, or what they mean."""

    def __init__(self) -> None:
        self._model: Classifier | None = None

    def load(self, options: ClassifierOptions, threads: int) -> Any:
        try:
            import torch

            torch.set_num_threads(threads)
            self._model = Classifier(options)
        except Exception as error:  # whatever is wrong with a model, who asked for it hears of it
            return Failure.of(error)
        return None

    def score(self, conversations: Sequence[Messages]) -> Any:
        try:
            assert self._model is not None
            return self._model.score(conversations)
        except Exception as error:
            return Failure.of(error)


class RayReplica:
    """The model in an actor; see :class:`trainers.rewards.backends.Replica`. Ray must be running.

    Args:
        options: The model; its files must be where the actor is.
        threads: It computes with.
        placement: Options of Ray for the actor: what it takes (``num_gpus``), and its placement group.

    Raises:
        ImportError: Ray is not installed.
        ValueError: ``threads`` is below 1.
    """

    def __init__(
        self, options: ClassifierOptions, *, threads: int = 1, placement: Mapping[str, Any] | None = None
    ) -> None:
        if threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        self.lost = False
        self._ray = import_ray()
        self._options, self._threads, self._placement = options, threads, dict(placement or {})
        self.actor: Any = None

    async def start(self) -> None:
        """See :class:`trainers.rewards.backends.Replica`."""
        self.actor = self._ray.remote(max_restarts=0, max_task_retries=0, **self._placement)(_RewardActor).remote()
        await self._ask(self.actor.load.remote(self._options, self._threads))

    async def score(self, conversations: Sequence[Messages]) -> list[float | str]:
        """See :class:`trainers.rewards.backends.Replica`."""
        scores: list[float | str] = await self._ask(self.actor.score.remote(list(conversations)))
        return scores

    async def close(self) -> None:
        """See :class:`trainers.rewards.backends.Replica`."""
        self._kill()

    def _kill(self) -> None:
        if self.actor is not None:
            with contextlib.suppress(Exception):  # Ray may be gone itself
                self._ray.kill(self.actor, no_restart=True)

    async def _ask(self, ref: Any) -> Any:
        try:
            answer = await ref
        except self._ray.exceptions.RayActorError as error:
            self.lost = True
            raise ReplicaLostError(f"its actor died: {said(error)}") from error
        except self._ray.exceptions.RayError as error:
            raise BackendError(f"its actor: {said(error)}") from error
        except BaseException:  # nobody waits any more, and nobody knows how long it would go on
            self.lost = True
            self._kill()
            raise
        if isinstance(answer, Failure):
            if isinstance(answer.error, ValueError):
                raise answer.error
            raise BackendError(f"its actor raised:\n{answer.text}")
        return answer
