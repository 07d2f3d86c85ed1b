"""A classifier in a Ray actor, as a worker of :class:`trainers.rewards.backends.classifier.ClassifierPool`."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from trainers.cluster.rank import Failure
from trainers.cluster.ray.runtime import import_ray, said
from trainers.config.reward_model import ClassifierSection
from trainers.rewards import BackendError
from trainers.rewards.backends.classifier import Classifier, WorkerLostError


class _RewardActor:
    def __init__(self, gpus: Sequence[int]) -> None:
        if gpus:  # it takes none of Ray's, but uses those of learner ranks
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
        self._model: Any = None

    def load(self, options: ClassifierSection, device: str) -> None:
        import torch

        torch.set_num_threads(options.threads)
        self._model = Classifier(options, device)

    def call(self, method: str, arguments: Sequence[Any]) -> Any:
        try:
            return getattr(self if method == "load" else self._model, method)(*arguments)
        except Exception as error:
            return Failure.of(error)


class RayWorker:
    """A :class:`~trainers.rewards.backends.classifier.Worker`. Ray must run, the model be where the actor is.

    ``placement`` are Ray's options for the actor; ``gpus`` CUDA numbers of GPUs that it shares and takes none of.
    """

    def __init__(
        self, options: ClassifierSection, device: str, *, placement: Mapping[str, Any], gpus: Sequence[int] = ()
    ) -> None:
        self.lost = False
        self.actor: Any = None
        self._ray = import_ray()
        self._options, self._device, self._placement, self._gpus = options, device, placement, gpus

    async def start(self) -> None:
        remote = self._ray.remote(max_restarts=0, max_task_retries=0, **self._placement)(_RewardActor)
        self.actor = remote.remote(self._gpus)
        await self.call("load", self._options, self._device)

    async def call(self, method: str, *arguments: Any) -> Any:
        try:
            answer = await self.actor.call.remote(method, arguments)
        except self._ray.exceptions.RayActorError as error:
            self.lost = True
            raise WorkerLostError(f"its actor died: {said(error)}") from error
        except self._ray.exceptions.RayError as error:
            raise BackendError(f"its actor: {said(error)}") from error
        except BaseException:  # cancelled: it may compute for any time
            self.lost = True
            await self.close()
            raise
        if isinstance(answer, Failure):
            if isinstance(answer.error, ValueError):
                raise answer.error
            raise BackendError(f"its actor raised:\n{answer.text}")
        return answer

    async def close(self) -> None:
        if self.actor is not None:
            with contextlib.suppress(Exception):  # Ray may be gone itself
                self._ray.kill(self.actor, no_restart=True)
