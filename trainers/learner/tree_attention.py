"""Attention over token trees on CUDA: the launches of the kernels in Triton (:mod:`.tree_kernel`).

Nodes stand in depth-first order, so that query ``i`` sees key ``j`` exactly where ``j <= i < ends[j]``
(:mod:`trainers.learner.trees`): one integer a key is the whole mask. A :class:`Plan` lists, for each tile of queries,
the tiles of keys that it sees, and the reverse. The host computes it once a micro-batch, for all layers, and copies it
at once. Tiles that hold ancestors only need no comparison.

The forward pass is attention with an online softmax (FlashAttention-2, arXiv 2307.08691). It keeps a base-2 log-sum-exp
of each query. The backward pass uses no atomic operations, so equal inputs give equal gradients, bit for bit:

* ``backward_queries`` computes the gradient of queries by tiles of queries, and the products of gradients and outputs
  that the next kernel needs;
* ``backward_keys`` computes the gradients of keys and values by tiles of keys, over all query heads that share a key
  head. Nearly all queries see the few tiles of a tree's trunk, so that one program a tile would leave most
  multiprocessors idle. Long lists are therefore cut into parts of about equal length;
* ``add_parts`` adds up the float32 sums of the parts, in order.

Programs with the longest lists start first. Nothing at compile time depends on the number of nodes: a kernel is
compiled once for each type, head size, number of query heads a key head, and layout of its inputs. Each pass is an
operator of :mod:`torch.library`, so that a compiled block is one graph for all forests. The kernels never ran on a GPU.
The tests run them in Triton's interpreter and compile them for compute capabilities 8.0 and 9.0.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass
from functools import cache as cached
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainers.learner.transfer import to_device
from trainers.learner.trees import Ints, tiles, visits

_LONG = 128  #: rows of a tile of the side that a program keeps, in a plan's lists
_SHORT = 64  #: rows of a tile of the other side, over which it loops
_PARTS = 384  #: parts that the lists of all tiles of keys are cut into, about: for 2 key heads some 6 a multiprocessor
_SHORTEST = 8  #: tiles of a part, at least: it costs reading a tile of keys and values, and writing a tile of sums
_SUMMED = 32  #: rows of a tile of keys whose parts a program adds up
_ALIGNED = 4  #: int32 numbers: kernels are compiled again for arrays that do not start at a multiple of 16 bytes
_LOG2_E = math.log2(math.e)
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


# ------------------ the plan


class Lists(NamedTuple):
    """The mask of a row of ``L`` positions, and the order of the work; int32 on the device."""

    ends: Tensor  #: ``[L]``; see :class:`trainers.learner.trees.Forest`; 0 where nothing sees the position
    query_rows: Tensor  #: ``[P, 5]``; the rows of :class:`trainers.learner.trees.Visits`, of tiles of queries
    query_tiles: Tensor  #: ``[M + 1]``; the tiles of keys that they see
    key_rows: Tensor  #: ``[R, 5]``; the same for tiles of keys
    key_tiles: Tensor  #: ``[N + 1]``; the tiles of queries that see them
    key_sums: Tensor  #: ``[S, 3]``


@dataclass(frozen=True, eq=False)
class Plan:
    """The lists of a row of positions, as two tensors.

    torch.compile compiles again where two sizes of its inputs become equal, or one becomes 0 or 1. So it does not see
    the sizes of the lists.
    """

    numbers: Tensor  #: int32 on the device: all lists, one after another
    shapes: Tensor  #: int64 ``[6, 3]`` on the CPU: where each list starts in ``numbers``, its rows and columns

    @classmethod
    def of(cls, ends: Ints, size: int, device: torch.device) -> Plan:
        """Build the plan of a forest with these ``ends``, in a row of ``size`` positions; one copy to the device."""
        padded = np.append(ends, np.zeros(size - len(ends), np.int64))
        by_query = visits(*tiles(padded, _LONG, _SHORT))
        some, every = (which.T for which in tiles(padded, _SHORT, _LONG))
        by_key = visits(some, every, max(_SHORTEST, -(-int(some.sum()) // _PARTS)))
        arrays: list[NDArray[Any]] = [padded, by_query.rows, by_query.tiles, by_key.rows, by_key.tiles, by_key.sums]
        starts = np.cumsum([0, *(array.size + -array.size % _ALIGNED for array in arrays)])
        numbers = np.zeros(starts[-1], np.int32)
        for start, array in zip(starts, arrays, strict=False):
            numbers[start : start + array.size] = array.ravel()
        shapes = [[int(start), *array.shape, 1][:3] for start, array in zip(starts, arrays, strict=False)]
        return cls(to_device(numbers, device), torch.tensor(shapes))

    def lists(self) -> Lists:
        """Return the lists: views of ``numbers``."""
        return _lists(self.numbers, self.shapes)


def _lists(numbers: Tensor, shapes: Tensor) -> Lists:
    ends, query_rows, query_tiles, key_rows, key_tiles, key_sums = (
        numbers[start : start + rows * columns].view(rows, columns) for start, rows, columns in shapes.tolist()
    )
    return Lists(ends[:, 0], query_rows, query_tiles[:, 0], key_rows, key_tiles[:, 0], key_sums)


def tree_attention(query: Tensor, key: Tensor, value: Tensor, plan: Plan, scale: float | None = None) -> Tensor:
    """Attend with every position to those that it sees; differentiable once.

    Args:
        query: ``[L, H, D]``, bfloat16, float16 or float32, with any strides; ``D`` up to 256.
        key: ``[L, K, D]`` of the same type; ``K`` divides ``H``.
        value: As ``key``.
        plan: Of ``L`` positions.
        scale: Of the products, above 0; ``D ** -0.5`` by default.

    Returns ``[L, H, D]``, contiguous, 0 where nothing is seen. Sums are float32, and so are the products of float32
    inputs. Raises ``ValueError``: shapes, types or the scale are others; ``ModuleNotFoundError``: Triton is not
    installed.
    """
    (length, heads, size), key_heads = query.shape, key.shape[1]
    if key.shape != value.shape or key.shape != (length, key_heads, size) or heads % key_heads:
        raise ValueError(f"no tree attention of {[*query.shape]} to keys {[*key.shape]} and values {[*value.shape]}")
    if query.dtype not in _DTYPES or not query.dtype == key.dtype == value.dtype:
        raise ValueError(
            f"tree attention takes bfloat16, float16 or float32, not {query.dtype}, {key.dtype}, {value.dtype}"
        )
    scale = size**-0.5 if scale is None else scale
    if not scale > 0:
        raise ValueError(f"tree attention takes a scale above 0, not {scale}")
    out: Tensor = _attend(query, key, value, plan.numbers, plan.shapes, scale)[0]
    return out


# ------------------ operators


@torch.library.custom_op("textenvs::tree_attention", mutates_args=())
def _attend(
    query: Tensor, key: Tensor, value: Tensor, numbers: Tensor, shapes: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    return _forward(query, key, value, _lists(numbers, shapes), scale)


@_attend.register_fake
def _(query: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    return _results(query)


@torch.library.custom_op("textenvs::tree_attention_backward", mutates_args=())
def _differentiate(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    log_norms: Tensor,
    numbers: Tensor,
    shapes: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    return _backward(grad, query, key, value, out, log_norms, _lists(numbers, shapes), scale)


@_differentiate.register_fake
def _(grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _gradients(query, key, value)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    """Keep inputs, outputs and log-sum-exps for the backward pass."""
    query, key, value, numbers, shapes, ctx.scale = inputs
    ctx.save_for_backward(query, key, value, *output, numbers, shapes)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)  # or log-sum-exps get a gradient of zeros


def _backpropagate(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    grads = (None, None, None) if grad is None else _differentiate(grad, *ctx.saved_tensors, ctx.scale)
    return (*grads, None, None, None)


_attend.register_autograd(_backpropagate, setup_context=_keep)


# ------------------ launches


@dataclass(frozen=True)
class Tiles:
    """The constants of a kernel that decide its speed."""

    queries: int  #: of a tile; both divide the plan's
    keys: int
    warps: int
    stages: int  #: tiles of the loop that are in shared memory: the one in use, and those loaded ahead


@dataclass(frozen=True)
class Tuning:
    """The constants of the three kernels with loops over tiles."""

    forward: Tiles
    queries: Tiles
    keys: Tiles


#: By bytes of a number, and the most numbers of a padded head. Chosen by what the compiler reports for compute
#: capabilities 8.0 and 9.0, never by a measurement. 16 bits and up to 128 numbers: 64 to 128 KiB of shared memory a
#: program on 9.0, at most 96 on 8.0 (an RTX GPU has 99); at most 92 bytes spilled from registers. More numbers: tiles
#: that do not spill. Float32 is multiplied exactly, without tensor cores and with operands in registers: small tiles.
_TUNING = {
    (2, 64): Tuning(Tiles(128, 64, 4, 3), Tiles(128, 64, 8, 3), Tiles(64, 128, 8, 3)),
    (2, 128): Tuning(Tiles(128, 64, 8, 3), Tiles(128, 64, 8, 2), Tiles(64, 128, 8, 2)),
    (2, 256): Tuning(Tiles(32, 32, 4, 1), Tiles(32, 32, 4, 1), Tiles(32, 32, 4, 1)),
    (4, 64): Tuning(Tiles(32, 32, 4, 2), Tiles(32, 32, 8, 2), Tiles(32, 32, 8, 2)),
    (4, 128): Tuning(Tiles(16, 16, 4, 1), Tiles(16, 16, 8, 1), Tiles(16, 16, 4, 1)),
    (4, 256): Tuning(Tiles(16, 16, 8, 1), Tiles(16, 16, 8, 1), Tiles(16, 16, 8, 1)),
}


def tuning_of(dtype: torch.dtype, size: int) -> Tuning:
    """Return the constants for heads of ``size`` numbers. Raises ``ValueError``: they are too large."""
    padded = _padded(size)
    fitting = [tuning for (item, most), tuning in _TUNING.items() if item == dtype.itemsize and padded <= most]
    if not fitting:
        raise ValueError(
            f"tree attention takes heads of at most 256 numbers, not {size}: set model.attn_implementation=sdpa, "
            "which reads trajectories row by row"
        )
    return fitting[0]


def _padded(size: int) -> int:
    """Return how many numbers of a head are in registers: a power of two, at least what a product takes."""
    return max(16, 1 << (size - 1).bit_length())


def _results(query: Tensor) -> tuple[Tensor, Tensor]:
    """Allocate the output ``[L, H, D]`` and the base-2 log-sum-exps, float32 ``[H, L]``."""
    length, heads, _ = query.shape
    return query.new_empty(query.shape), query.new_empty((heads, length), dtype=torch.float32)


def _gradients(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Allocate the gradients of queries, keys and values, contiguous."""
    return query.new_empty(query.shape), key.new_empty(key.shape), value.new_empty(value.shape)


def _forward(query: Tensor, key: Tensor, value: Tensor, lists: Lists, scale: float) -> tuple[Tensor, Tensor]:
    """Return what :func:`_results` allocates."""
    length, heads, size = query.shape
    if len(lists.ends) != length:
        raise ValueError(f"the plan is of {len(lists.ends)} positions, and the queries have {length}")
    out, log_norms = _results(query)
    tuning = tuning_of(query.dtype, size).forward
    with _current(query.device):
        load_kernel().forward[heads, len(lists.query_rows) * (_LONG // tuning.queries)](
            *(query, key, value, out, log_norms, lists.ends, lists.query_rows, lists.query_tiles, length),
            *(scale * _LOG2_E, *query.stride(), *key.stride(), *value.stride()),
            **_constants(query, key, tuning),
        )
    return out, log_norms


def _backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, log_norms: Tensor, lists: Lists, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return what :func:`_gradients` allocates."""
    length, heads, size = query.shape
    key_heads = key.shape[1]
    grad_q, grad_k, grad_v = _gradients(query, key, value)
    deltas = torch.empty_like(log_norms)
    # A tile that is cut has a row for each of its parts, and others have one.
    parts = len(lists.key_rows) - -(-length // _LONG) + len(lists.key_sums)
    parts_k, parts_v = torch.empty((2, parts, key_heads, _LONG, size), dtype=torch.float32, device=query.device)
    tuning = tuning_of(query.dtype, size)
    numbers = [length, scale, scale * _LOG2_E, *query.stride(), *key.stride(), *value.stride(), *grad.stride()]
    kernel = load_kernel()
    with _current(query.device):
        kernel.backward_queries[heads, len(lists.query_rows) * (_LONG // tuning.queries.queries)](
            *(query, key, value, out, grad, log_norms, deltas, grad_q),
            *(lists.ends, lists.query_rows, lists.query_tiles, *numbers),
            **_constants(query, key, tuning.queries),
        )
        kernel.backward_keys[key_heads, len(lists.key_rows) * (_LONG // tuning.keys.keys)](
            *(query, key, value, grad, log_norms, deltas, grad_k, grad_v, parts_k, parts_v),
            *(lists.ends, lists.key_rows, lists.key_tiles, *numbers),
            **_constants(query, key, tuning.keys),
        )
        if parts:
            kernel.add_parts[key_heads, len(lists.key_sums), _LONG // _SUMMED](
                *(parts_k, parts_v, grad_k, grad_v, lists.key_sums, length),
                SIZE=size,
                PADDED=_padded(size),
                ROWS=_SUMMED,
                LONG=_LONG,
                num_warps=4,
                enable_fp_fusion=True,
            )
    return grad_q, grad_k, grad_v


def _constants(query: Tensor, key: Tensor, tiles: Tiles) -> dict[str, Any]:
    size = query.shape[2]
    return {
        "GROUP": query.shape[1] // key.shape[1],
        "SIZE": size,
        "PADDED": _padded(size),
        "QUERIES": tiles.queries,
        "KEYS": tiles.keys,
        "LONG": _LONG,
        "SHORT": _SHORT,
        "num_warps": tiles.warps,
        "num_stages": tiles.stages,
        "enable_fp_fusion": True,  # Triton's default differs between versions
    }


def _current(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Make a device the thread's current one: Triton launches there, on its current stream."""
    return torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext()


@cached
def load_kernel() -> Any:
    """Import the kernels; ``ModuleNotFoundError``: Triton is not installed."""
    try:
        from trainers.learner import tree_kernel
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise ModuleNotFoundError(
            "token trees on CUDA need Triton, which PyTorch's builds for CUDA on Linux bring: "
            "pip install triton, or set model.attn_implementation=sdpa, which reads trajectories row by row",
            name="triton",
        ) from error
    return tree_kernel
