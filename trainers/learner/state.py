"""A learner's checkpoint: written at once or in the background, and read again.

``learner.json`` says what it is; ``tensors/`` has what learns: trained parameters, optimizer states, torch's random
state. ``frozen/`` has what does not: a reference model, the matrices under LoRA adapters. It is written once and then
linked (:class:`trainers.learner.checkpoint.LinkedTensors`), so a checkpoint of adapters costs what adapters weigh.
``checksums.json`` has a checksum of each file; all are verified before anything is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trainers.learner.checkpoint import LinkedTensors, recover, replace_folder
from trainers.learner.checksums import CHECKSUMS, DamagedError, verify
from trainers.learner.fsdp import Ranks
from trainers.learner.optim import Optimizer
from trainers.learner.tensors import read_tensors, write_tensors

_FORMAT = 3
_RECORD = "learner.json"


#: What to do about a checkpoint of another version.
OTHER_FORMAT = (
    "another version wrote it, and its files are not read (older ones hold pickles, which can run code); resume with "
    "that version, or start a new run from its model (model.path=CHECKPOINT/model)"
)


class LearnerState:
    """State of some models, by name, and of their optimizers; ``adapters`` has the adapters' settings, as JSON."""

    def __init__(
        self,
        models: Mapping[str, nn.Module],
        optimizers: Mapping[str, Optimizer],
        adapters: Mapping[str, Any] | None,
        ranks: Ranks,
    ) -> None:
        self._models = dict(models)
        self._optimizers = dict(optimizers)
        self._adapters = None if adapters is None else dict(adapters)
        self._ranks = ranks
        self._frozen = LinkedTensors()

    def writer(self, extra: Mapping[str, Any] | None, apart: Ranks | None = None) -> Callable[[str | Path], None]:
        """Return a function that writes a folder with the state as it is now, and ``extra`` as JSON.

        All ranks call it together, with the same path. With ``apart`` it will be used in another thread while training
        continues: it takes copies of what learns, and talks to the other ranks over these, which nothing else uses at
        the time (:meth:`Ranks.apart`).
        """
        record = {
            "format": _FORMAT,
            "models": sorted(self._models),
            "adapters": self._adapters,
            "optimizers": {name: {"step_count": optimizer.step_count} for name, optimizer in self._optimizers.items()},
            "extra": dict(extra or {}),
        }
        text = json.dumps(record, indent=1)
        learned, frozen = self._tensors()
        ranks = apart or self._ranks
        if apart is not None:
            learned = {name: value.detach().to("cpu", copy=True) for name, value in learned.items()}

        def write(path: str | Path) -> None:
            with replace_folder(path, ranks) as folder:
                write_tensors(folder / "tensors", learned, ranks)
                if frozen:
                    self._frozen.write(folder / "frozen", frozen, ranks)
                if ranks.first:
                    (folder / _RECORD).write_text(text, encoding="utf-8")

        return write

    def load(self, path: str | Path) -> dict[str, Any]:
        """Read what a writer wrote, on any number of ranks; returns its ``extra``. Raises as :meth:`.Learner.load`."""
        self._ranks.first_does(lambda: recover(path))
        path = Path(path)
        if not (path / _RECORD).is_file():
            raise FileNotFoundError(f"no checkpoint of a learner at {path}: {_RECORD} is not there")
        record = _read(path / _RECORD)
        if record["format"] == _FORMAT or (path / CHECKSUMS).is_file():
            self._ranks.first_does(lambda: verify(path))
        if record["format"] != _FORMAT:
            raise ValueError(f"{path} has checkpoint format {record['format']!r}: {OTHER_FORMAT}")
        if record["models"] != sorted(self._models):
            raise ValueError(
                f"{path} holds {', '.join(record['models'])}, but this learner has "
                f"{', '.join(sorted(self._models))}; it needs the same critic and reference"
            )
        if (stored := record.get("adapters")) != self._adapters:
            raise ValueError(
                f"{path} has adapters {stored}, but this learner has {self._adapters}; they must be the same"
            )
        learned, frozen = self._tensors()
        read_tensors(path / "tensors", learned, self._ranks)
        if frozen:
            read_tensors(path / "frozen", frozen, self._ranks)
            self._frozen.remember(path / "frozen", self._ranks)
        torch.set_rng_state(learned["rng"])
        for name, optimizer in self._optimizers.items():
            optimizer.step_count = record["optimizers"][name]["step_count"]
        extra: dict[str, Any] = record["extra"]
        return extra

    def _tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the live tensors, each once: trained and frozen. Writing into them is loading (but for ``rng``)."""
        learned = {"rng": torch.get_rng_state()}
        frozen: dict[str, Tensor] = {}
        for name, model in self._models.items():
            state = model.state_dict(keep_vars=True)
            tied = {id(value): key for key, value in reversed(state.items())}  # to the first of its names
            for key, value in state.items():
                if tied[id(value)] == key:
                    (learned if value.requires_grad else frozen)[f"{name}/{key}"] = value
        for name, optimizer in self._optimizers.items():
            for key, moments in optimizer.state().items():
                learned |= {f"{name}/{key}/{moment}": value for moment, value in moments.items()}
        return learned, frozen


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} cannot be read: {error}") from error
    if not isinstance(record, dict) or "format" not in record:
        raise DamagedError(f"{path} is damaged: it is not the record of a learner")
    return record
