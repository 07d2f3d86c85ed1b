"""Memory of the embedded engine's decoding steps, in bytes. Pure: the engine sizes itself and a plan counts by this.

Nearly all of it are tensors of a number for each row and token of the vocabulary, from the logits to the draw. What the
layers compute before is smaller and gone by then.

With CUDA graphs there are two pools that do not share. The graphs of all sizes and kinds use one, which is as large as
the largest step, because they are captured from the largest down and one runs at a time. The other is the allocator's:
each step runs once before its capture, and steps with prompts draw there. The graphs' own nodes are not counted.
"""

from __future__ import annotations

from typing import Literal

#: All rows greedy; without cuts; with cuts; and with reports of what the cuts left.
StepKind = Literal["greedy", "plain", "cut", "whole"]

# Bytes for each row and token. Logits and log-probs are float32; then weights of the draw, and their sum in float64.
_GREEDY, _PLAIN = 8, 20
# Sorting: logits, log-probs, weights, and sorted weights with their ids. CUDA's sort takes more, by the number of rows
# (``aten/src/ATen/native/cuda/SortStable.cu``): below 128 it sorts all rows as one, with a pair of int32 for each
# number, twice, a copy of the numbers, and the radix sort's own copy of both; from 128 on each row apart, with an index
# in 64 bits and such a copy. What comes after the sort needs less than either.
_SORTED, _AS_ONE, _APART, _ROWS_AS_ONE = 24, 32, 20, 128
# Masks of what is left: a byte in the outputs of each size of graph, which together have twice the rows; and one in the
# reports of two steps that were not read yet.
_MASKS = 4
_ROUNDED = 1.05  # what is small, and sizes that the allocator rounds up


def step_bytes(rows: int, vocab: int, kind: StepKind) -> int:
    """Return the peak of a step of at most ``rows`` rows."""
    if kind in ("greedy", "plain"):
        numbers = rows * (_GREEDY if kind == "greedy" else _PLAIN)
    else:
        numbers = max(rows * (_SORTED + _APART), min(rows, _ROWS_AS_ONE - 1) * (_SORTED + _AS_ONE))
    return int(_ROUNDED * numbers * vocab)


def engine_bytes(rows: int, vocab: int, kind: StepKind, *, graphs: bool) -> int:
    """Return what all steps of an engine take, of this kind and those before it: twice a step with CUDA graphs."""
    masks = rows * vocab * _MASKS if kind == "whole" else 0
    return step_bytes(rows, vocab, kind) * (2 if graphs else 1) + masks
