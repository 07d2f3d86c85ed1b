"""The memory of decoding steps: the formula against the tensors that the same steps allocate on a CPU."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.trainers.engines.engine_kits import lively_model
from trainers.config.engine import TorchEngineSection
from trainers.engines import torch_engine
from trainers.engines.base import default_kv_bytes
from trainers.engines.decoder import SIZE, Decoder, position_bytes
from trainers.engines.sampling import ROW, Kind
from trainers.engines.static_step import StaticStep
from trainers.engines.step_memory import StepKind, engine_bytes, step_bytes

VOCAB, CONTEXT = 6000, 32
#: A row of each kind: a temperature, ``top_p``, and whether it reports.
ROWS: dict[StepKind, tuple[float, float, bool]] = {
    "greedy": (0.0, 1.0, False),
    "plain": (0.7, 1.0, False),
    "cut": (0.7, 0.9, False),
    "whole": (0.7, 0.9, True),
}


class Allocated(TorchDispatchMode):
    """Counts the bytes of the tensors that are alive, with what a sort takes beside them on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak = 0
        self._storages: set[int] = set()

    def __torch_dispatch__(self, call: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = {value.untyped_storage()._cdata for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)}
        result = call(*args, **(kwargs or {}))
        for value in tree_leaves(result):
            if isinstance(value, Tensor) and (storage := value.untyped_storage())._cdata not in before | self._storages:
                self._storages.add(storage._cdata)
                self.bytes += storage.nbytes()
                weakref.finalize(storage, self._free, storage._cdata, storage.nbytes())
        inside = 0
        if call.name().startswith("aten::sort"):
            count = args[0].shape[0]
            # See SortStable.cu: pairs of int32 twice and keys; or indices; and the radix sort's own keys and values.
            inside = args[0].numel() * ((8 + 8 + 4 if 1 < count < 128 else 8) + 4 + 8)
        self.peak = max(self.peak, self.bytes + inside)
        return result

    def _free(self, storage: int, size: int) -> None:
        self._storages.discard(storage)
        self.bytes -= size


def steps_of(rows: int) -> StaticStep:
    decoder = Decoder(lively_model(vocab=VOCAB, max_context=CONTEXT), 2 * rows, CONTEXT, threads=1)
    return StaticStep(decoder, rows, torch.tensor([3]))


def row_of(kind: StepKind) -> np.ndarray:
    row = np.zeros(1, ROW)
    row["temperature"], row["top_p"], row["return_kept"] = ROWS[kind]
    return row


def run_step(steps: StaticStep, rows: int, kind: StepKind) -> Any:
    zeros = np.zeros(rows, np.int64)
    table = np.arange(rows)[:, None]
    return steps.launch(np.arange(rows), zeros, zeros, table[:, 0] * SIZE, table, row_of(kind).repeat(rows))


@pytest.mark.parametrize("kind", ROWS)
@pytest.mark.parametrize("rows", [2, 16, 200])
@torch.inference_mode()
def test_formula_bounds_a_step(kind: StepKind, rows: int) -> None:
    steps = steps_of(rows)
    steps.prepare(Kind.of(row_of(kind)))
    with Allocated() as allocated:
        drawn = run_step(steps, rows, kind)
    drawn.read()
    assert allocated.peak <= step_bytes(rows, VOCAB, kind) <= 1.3 * allocated.peak


@torch.inference_mode()
def test_formula_bounds_all_sizes_and_kinds() -> None:
    """Memory still alive behind a capture counts, and so do reports that were not read yet."""
    steps = steps_of(16)
    with Allocated() as allocated:
        drawn = []
        for kind in ROWS:
            steps.prepare(Kind.of(row_of(kind)))
        for _ in range(2):
            drawn.append(run_step(steps, 16, "whole"))
    assert allocated.peak <= engine_bytes(16, VOCAB, "whole", graphs=False) <= 1.3 * allocated.peak


def test_larger_steps_take_more() -> None:
    sizes = [[step_bytes(rows, 1000, kind) for rows in (1, 64, 127, 128, 160, 256)] for kind in ROWS]
    assert all(few <= many for row in sizes for few, many in zip(row, row[1:], strict=False))
    assert all(
        small <= large for column in zip(*sizes, strict=True) for small, large in zip(column, column[1:], strict=False)
    )
    assert engine_bytes(256, 152_000, "cut", graphs=True) == 2 * step_bytes(256, 152_000, "cut")


def test_engine_takes_keys_from_what_steps_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    config, gpu = lively_model(vocab=VOCAB, max_context=1024).config, 4 * 2**20
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (gpu, 2 * gpu))
    counts = {}
    for graphs in (True, False):
        section = TorchEngineSection(max_context=1024, cuda_graphs=graphs)
        blocks = torch_engine._blocks(config, section, 4, torch.device("cuda"), torch.float32)
        steps = engine_bytes(4, VOCAB, "whole", graphs=graphs)
        block = position_bytes(config, torch.float32) * SIZE
        assert blocks == default_kv_bytes(gpu, steps) // block < 4 * 1024 // SIZE
        counts[graphs] = blocks
    assert counts[True] < counts[False]
