"""Publication of an actor's weights, from a learner to engines."""

from __future__ import annotations

import uuid
from typing import Any

import torch

from ..cluster.group import LearnerGroup
from ..config.schema import PPOConfig
from ..engines.transport import AdapterSource, LocalSource, WeightSource
from ..learner import Learner
from ..learner.weight_stream import Which


class Publisher:
    """Publisher of an actor's weights from a learner, in the form of ``model.lora_publish``.

    With ``rollout.staleness=0`` engines read the parameters themselves, which nothing changes until they have them.
    Otherwise engines in other processes receive a snapshot, of which each rank has its own part, and training
    continues. Embedded engines in this process still read the parameters: the optimizer's next step waits until they
    have.
    """

    def __init__(self, learner: Learner | LearnerGroup, config: PPOConfig) -> None:
        self._learner = learner
        model = config.model
        self._adapters = model.publishes_adapter
        self._scale = model.lora_scale
        embedded = config.engine.name == "torch" and config.cluster.backend != "ray"
        self._dtype = None if embedded else getattr(torch, model.precision)  # in this process the copy is the cast
        self._snapshot = config.rollout.staleness > 0 and not embedded
        self._name = uuid.uuid4().hex
        self._base: Any = None

    @property
    def live(self) -> bool:
        """True if engines read the parameters themselves, which must not change during an update."""
        return not self._snapshot

    def take(self) -> tuple[WeightSource | AdapterSource, int]:
        """Return the current weights in the engines' form, and the bytes of them that are new. It blocks."""
        if not self._adapters:
            weights, size = self._part("weights")
            return weights, size
        size = 0
        if (
            self._base is None
        ):  # frozen weights are a checkpoint's, if there is one: not those that engines were made of
            self._base, size = self._part("base")
        adapter, adapter_size = self._part("adapter")
        return AdapterSource(self._name, self._base, adapter, self._scale), size + adapter_size

    def _part(self, which: Which) -> tuple[WeightSource, int]:
        dtype = self._dtype if which == "weights" else None
        source: WeightSource
        if isinstance(self._learner, Learner):
            stream, ranks = self._learner.publication(which, dtype, snapshot=self._snapshot), self._learner.ranks
            source = LocalSource(stream.specs, lambda: stream.read(ranks), self._learner.device)
        else:
            source = self._learner.publication(which, dtype, snapshot=self._snapshot)
        return source, source.nbytes
