"""What engines get after an iteration: merged weights, or adapters and once what they stand on."""

from __future__ import annotations

import uuid
from typing import Any

import torch

from ..cluster.ray.ranks import RayLearnerGroup
from ..config.schema import PPOConfig
from ..engines.transport import AdapterSource, LocalSource, WeightSource
from ..learner import Learner
from ..learner.weight_stream import Which


class Publisher:
    """Takes an actor's weights from a learner, in the form that ``model.lora_publish`` says.

    With ``rollout.staleness=0`` engines read the parameters themselves, which nothing changes until they have them.
    With more, those in other processes get a snapshot, of which each rank has its own part, and training goes on.
    Embedded engines in this process still read the parameters: the optimizer's next step waits until they have.
    """

    def __init__(self, learner: Learner | RayLearnerGroup, config: PPOConfig) -> None:
        self._learner = learner
        model = config.model
        self._adapters = bool(model.lora_rank) and model.lora_publish == "adapter"
        self._scale = model.lora_alpha / max(model.lora_rank, 1)
        here = config.engine.name == "torch" and config.cluster.backend != "ray"
        self._dtype = None if here else getattr(torch, model.precision)  # in this process the copy is the cast
        self._snapshot = config.rollout.staleness > 0 and not here
        self._name = uuid.uuid4().hex
        self._base: Any = None

    @property
    def live(self) -> bool:
        """Whether engines read the parameters themselves: those must not change while an update is under way."""
        return not self._snapshot

    def take(self) -> tuple[WeightSource | AdapterSource, int]:
        """The weights of now, as engines take them, and how many bytes of them are new. It takes its time."""
        if not self._adapters:
            weights, size = self._part("weights")
            return weights, size
        size = 0
        if self._base is None:  # what is frozen is that of a checkpoint, if there is one: not what engines were made of
            self._base, size = self._part("base")
        adapter, more = self._part("adapter")
        return AdapterSource(self._name, self._base, adapter, self._scale), size + more

    def _part(self, which: Which) -> tuple[WeightSource, int]:
        dtype = self._dtype if which == "weights" else None
        source: WeightSource
        if isinstance(self._learner, Learner):
            stream, ranks = self._learner.publication(which, dtype, snapshot=self._snapshot), self._learner.ranks
            source = LocalSource(stream.specs, lambda: stream.read(ranks))
        else:
            source = self._learner.publication(which, dtype, snapshot=self._snapshot)
        return source, source.nbytes
