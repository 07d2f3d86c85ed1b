"""What engines get after an iteration: merged weights, or adapters and once what they stand on."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..cluster.group import LearnerGroup
from ..cluster.ray.ranks import Published
from ..config.model import ModelSection
from ..engines.adapters import Adapted, nbytes
from ..learner import Learner


class Publisher:
    """Takes an actor's weights from a learner, in the form that ``model.lora_publish`` says.

    Args:
        learner: Of the run.
        model: Its configuration.
    """

    def __init__(self, learner: Learner | LearnerGroup, model: ModelSection) -> None:
        self._learner = learner
        self._adapters = bool(model.lora_rank) and model.lora_publish == "adapter"
        self._scale = model.lora_alpha / max(model.lora_rank, 1)
        self._dtype = getattr(torch, model.precision)
        self._name = uuid.uuid4().hex
        self._base: Mapping[str, Tensor] | None = None

    def take(self) -> tuple[Any, int]:
        """The weights of now, as engines take them, and how many bytes of them the learner gave. It takes its time."""
        if not self._adapters:
            weights = self._learner.weights(self._dtype)
            return weights, _size(weights)
        size = 0
        if self._base is None:  # what is frozen is that of a checkpoint, if there is one: not what engines were made of
            self._base = self._learner.base_weights()
            size = _size(self._base)
        adapter = self._learner.adapter_weights()
        return Adapted(self._name, self._base, adapter, self._scale), size + _size(adapter)


def _size(weights: Mapping[str, Tensor]) -> int:
    return weights.nbytes if isinstance(weights, Published) else nbytes(weights)
