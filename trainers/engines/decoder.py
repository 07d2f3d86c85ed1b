"""The computation of the torch engine: the forward pass over a flat batch of tokens.

Tokens of many requests lie one after the other in one ``[n]`` batch, so no linear layer sees padding. Attention works
on *groups* of requests with similar lengths. Keys and values live in one tensor a layer, ``[cells, 2 * kv_heads,
head_dim]`` (keys first), cut in blocks that requests hold and share (:class:`.block_pool.BlockPool`); a table
says where a request's positions lie. Requests that decode on several threads of a CPU read them in place
(:class:`CellAttention`); any other group gathers its blocks just before it attends: they are in the processor's cache
then.

The weights are copied into fused matrices (q, k, v in one; gate and up in one), of which each parameter of the original
is a view with its name: all that a weight update needs. Other families than :data:`FAMILIES` run through transformers'
own modules, on the same blocks (:mod:`.module_decoder`).
"""

from __future__ import annotations

import math
import mmap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from trainers.engines.packed_keys import MOST_KEYS, PackedKeys
from trainers.engines.transport import AdapterSource, LocalSource, Weights, source_of
from trainers.engines.weights import Named, check_names, check_weights, listed
from trainers.models.varlen import is_supported


def is_faster(device: torch.device, dtype: torch.dtype, threads: int) -> bool:
    """Return whether both kernels exist for these, and are faster than gathering."""
    return device.type == "cpu" and dtype in (torch.float32, torch.float64) and threads > 1


class CellAttention:
    """Attention of one query a head and request to one layer's ``cells``, each of ``kv_heads`` keys and as many values.

    Each head of keys serves ``heads / kv_heads`` consecutive ones of queries.

    The kernels for matrix products spend more on packing the keys of a single query than on multiplying them. Two
    kernels for sparse tables work straight from the cells: a product sampled at given places
    (``torch.sparse.sampled_addmm``) for the scores, and a weighted sum of rows (``embedding_bag``) for the values. On
    one thread gathering is faster (``python -m benchmarks.decode_attention`` shows both).
    """

    def __init__(self, heads: int, kv_heads: int, head_dim: int, cells: int, dtype: torch.dtype) -> None:
        self._heads, self._kv_heads, self._head_dim, self._dtype = heads, kv_heads, head_dim, dtype
        # A table of the cache has a row for each position and head: keys first, then as many values.
        self._table = cells * 2 * kv_heads
        self._index = torch.int32 if self._table < 2**31 else torch.int64  # half as much to read
        self._of_head = torch.arange(kv_heads, dtype=self._index).repeat_interleave(heads // kv_heads)[:, None]
        with warnings.catch_warnings():  # torch warns once per process of the "beta state"
            warnings.simplefilter("ignore")
            self.reads(torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64))

    def reads(self, cells: Tensor, positions: Tensor) -> Tensor:
        """Return the table entries that the requests read; the same for all layers.

        ``cells`` (int64 ``[R, keys]``) says where the cache has each position of a request, ``positions`` (int64
        ``[R]``) those of their queries. The answer is sparse, ``[R * heads, rows of the table]`` with ``keys`` entries
        a row: 0 up to the query's position, ``-inf`` beyond (where the cell must be finite).
        """
        keys, count = cells.shape[1], len(cells) * self._heads
        first = cells.to(self._index) * (2 * self._kv_heads)
        hidden = torch.arange(keys) > positions[:, None]
        bias = torch.zeros(hidden.shape, dtype=self._dtype).masked_fill_(hidden, float("-inf"))
        return torch.sparse_csr_tensor(
            torch.arange(0, count * keys + 1, keys, dtype=self._index),
            (first[:, None] + self._of_head).view(-1),
            bias.repeat_interleave(self._heads, 0).view(-1),
            size=(count, self._table),
            check_invariants=False,
        )

    def attend(self, q: Tensor, cache: Tensor, reads: Tensor) -> Tensor:
        """Attend with queries ``[R, heads, head_dim]``, to ``[R, heads * head_dim]``; ``reads`` is of :meth:`reads`.

        The cache is contiguous, ``[cells, 2 * kv_heads, head_dim]``; the queries need not be.
        """
        table = cache.view(-1, self._head_dim)
        queries = q.reshape(-1, self._head_dim)
        scale = self._head_dim**-0.5
        scores = torch.sparse.sampled_addmm(reads, queries, table.t(), alpha=scale).values().view(len(queries), -1)
        cells = reads.col_indices().view(scores.shape)
        values = table[self._kv_heads :]  # the value of a key's head stands so many rows further
        attended = F.embedding_bag(cells, values, mode="sum", per_sample_weights=scores.softmax(-1))
        return attended.view(len(q), -1)


FAMILIES = ("qwen2", "qwen3", "llama")
SIZE = 16  #: positions of a block of keys and values

_GROUP_ROWS = 32  # decoding requests of similar lengths: few read far beyond their own, and the cache holds them
# On a GPU a group is a handful of kernel launches a layer, which cost more than keys beyond a request's own.
_GROUP_ROWS_GPU = 256
# There, the keys that a group reads are rounded up: attention kernels want aligned biases.
_KEYS_STEP_GPU = 64
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")  # those whose angles depend on the position alone


def blocks_for(tokens: int) -> int:
    return -(-tokens // SIZE)


@dataclass(frozen=True)
class _Group:
    """A contiguous part of the flat batch that attends together, as ``R`` rows of at most ``Q`` new tokens."""

    begin: int  # first token in the flat batch
    end: int  # one past the last
    shape: tuple[int, int]  # (R, Q)
    keys: int  # how many positions of each row to read
    blocks: Tensor | None = None  # int64 [R * ceil(keys / SIZE)], where they are
    queries: Tensor | None = None  # int64 [R, Q], positions of the new tokens
    place: Tensor | None = None  # int64 [end - begin], where each token stands in [R * Q]; None if that is 0, 1, 2, ...
    reads: Tensor | None = None
    packed: PackedKeys | None = None
    #: By attention window (``None``: all positions), ``[R, 1, 1 or Q * (heads / kv_heads), keys]``: 0 where a query may
    #: look, ``-inf`` elsewhere. Made for the first layer that asks.
    biases: dict[int | None, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Paged:
    """Attention of a batch in which each of ``n`` rows has one token, with the same shapes in every step."""

    attention: Callable[..., Tensor]  # :func:`trainers.engines.paged_attention.paged_attention`, or its reference
    table: Tensor  # int [n, blocks of a row]
    positions: Tensor  # int64 [n]; -1 is padding


@dataclass(frozen=True)
class FlatBatch:
    """One step's work: ``n`` tokens of any number of requests."""

    tokens: Tensor  # int64 [n]
    positions: Tensor  # int64 [n]
    cells: Tensor  # int64 [n], where each token's keys and values go
    groups: Sequence[_Group] | Paged  # the parts that attend together; they cover the batch
    last: Tensor | None  # int64, the last token of each request, in the order in which they were given; None is all


#: The parts of a layer, and the model's modules that each is fused from.
_LAYER = {
    "attention_norm": ("input_layernorm",),
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "q_norm": ("self_attn.q_norm",),  # Qwen3: over each head
    "k_norm": ("self_attn.k_norm",),
    "out": ("self_attn.o_proj",),
    "mlp_norm": ("post_attention_layernorm",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}


class Decoder:
    """A causal language model, of one of :data:`FAMILIES`, over ``blocks`` blocks of keys and values.

    The weights of ``model``, a transformers model with a language-model head, are copied to ``device`` and ``dtype``,
    by default the model's own. The number of CPU ``threads`` selects the attention method.

    Raises ``ValueError``: an unsupported feature of the architecture; says which are supported.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        blocks: int,
        max_context: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        threads: int | None = None,
    ) -> None:
        config = model.config
        check_supported(config)
        self.blocks, self.max_context = blocks, max_context
        self.device = torch.device(device) if device is not None else model.device
        self.dtype = dtype or model.dtype
        gpu = self.device.type != "cpu"
        if gpu:  # torch prefers cuDNN's attention on an H100, which takes up to a second to plan each new shape
            torch.backends.cuda.enable_cudnn_sdp(False)
        self._group_rows, self._keys_step = (_GROUP_ROWS_GPU, _KEYS_STEP_GPU) if gpu else (_GROUP_ROWS, 1)
        self._heads: int = config.num_attention_heads
        self._kv_heads = _kv_heads(config)
        self._head_dim = _head_dim(config)
        self._packs = is_supported(self.device, self.dtype, self._head_dim)  # chunks of prompts, for their attention
        self._tied = {"lm_head.weight": "model.embed_tokens.weight"} if config.tie_word_embeddings else {}
        self.parameters: dict[str, Tensor] = {}
        self._num_layers: int = config.num_hidden_layers
        self._cache: list[Tensor] = []
        #: Changes when weights or keys and values move to other memory, whose addresses a CUDA graph would not know.
        self.memory_version = 0
        self._freed: list[tuple[torch.UntypedStorage, int]] = []  # of the weights, with the size to restore
        self._cells: CellAttention | None = None
        self._take_model(model, torch.get_num_threads() if threads is None else threads)

    def _take_model(self, model: PreTrainedModel, threads: int) -> None:
        self._eps: float = model.config.rms_norm_eps
        self._activation = ACT2FN[model.config.hidden_act]
        self._take_weights(model)
        self._cos, self._sin = self._rotary_tables(model)
        if is_faster(self.device, self.dtype, threads):
            self._cells = CellAttention(self._heads, self._kv_heads, self._head_dim, self._kv_cells, self.dtype)

    # Keys and values

    @property
    def _kv_cells(self) -> int:
        """Positions of all blocks, and of one more that no request has: padding writes there."""
        return (self.blocks + 1) * SIZE

    @property
    def spare_cell(self) -> int:
        """A place for keys and values that nobody reads."""
        return self.blocks * SIZE

    @property
    def _kv(self) -> list[Tensor]:
        """Keys and values of each layer, ``[cells, keys and values of all heads, head_dim]``."""
        self.allocate_cache()
        return self._cache

    def allocate_cache(self) -> None:
        """Allocate the memory of keys and values, if there is none; the first step does so too."""
        if not self._cache:
            cells = (self._kv_cells, 2 * self._kv_heads, self._head_dim)
            self._cache = [_zeros(cells, self.device, self.dtype) for _ in range(self._num_layers)]

    def free_cache(self) -> None:
        """Release the memory of all keys and values; the next step allocates it again, with zeros."""
        self._cache = []
        self.memory_version += 1

    # Weights

    def read_weights(self, weights: Weights) -> Iterator[Named]:
        """Begin to read weights of this process, for :meth:`load_weights`; raises as an engine's ``update_weights``."""
        shapes = {name: value.shape for name, value in self.parameters.items()}
        if isinstance(weights, Mapping):  # others come from a learner, which has checked their values
            check_weights(weights, shapes, self._tied)
        source = source_of(weights)
        if isinstance(source, AdapterSource):
            source = source.merged(self.device)
        assert isinstance(source, LocalSource)
        check_names({name: torch.Size(spec.shape) for spec in source.specs for name in spec.names}, shapes, self._tied)
        return source.read()

    def free_weights(self) -> None:
        """Release the memory of all weights; nothing can be computed until :meth:`load_weights`."""
        if self.has_weights:
            self.memory_version += 1
            storages = [value.untyped_storage() for value in self.parameters.values()]  # views share one
            self._freed = [(part, part.nbytes()) for part in {part.data_ptr(): part for part in storages}.values()]
            for storage, _ in self._freed:
                storage.resize_(0)

    @property
    def has_weights(self) -> bool:
        return not self._freed

    def load_weights(self, tensors: Iterable[Named]) -> None:
        """Copy weights into the memory of the old ones, cast; keys and values computed before are stale afterwards."""
        for storage, size in self._freed:
            storage.resize_(size)
        self._freed = []
        for names, value in tensors:
            for name in names:
                if name not in self._tied:
                    self.parameters[name].copy_(value)

    @torch.no_grad()
    def _take_weights(self, model: PreTrainedModel) -> None:
        source = model.state_dict()
        unused = dict(source)

        def fuse(*names: str) -> Any:
            if names[0] not in unused:
                return None
            parts = [unused.pop(name) for name in names]
            fused = torch.cat([part.to(self.device, self.dtype) for part in parts])  # cat always copies
            for name, view in zip(names, fused.split([len(part) for part in parts]), strict=True):
                self.parameters[name] = view
            return fused

        self._embedding = fuse("model.embed_tokens.weight")
        if self._tied:
            unused.pop("lm_head.weight", None)
            self._head = self.parameters["lm_head.weight"] = self._embedding
        else:
            self._head = fuse("lm_head.weight")
        self._norm = fuse("model.norm.weight")
        self._layers = [  # weight and bias
            {
                name: [fuse(*(f"model.layers.{index}.{part}.{kind}" for part in parts)) for kind in ("weight", "bias")]
                for name, parts in _LAYER.items()
            }
            for index in range(model.config.num_hidden_layers)
        ]
        if unused:
            raise ValueError(
                f"the torch engine does not know what to do with the model's weights {listed(sorted(unused))}; "
                "merge adapters and undo quantisation before serving the model"
            )
        self.read_weights(source)

    @torch.no_grad()
    def _rotary_tables(self, model: PreTrainedModel) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, each ``[max_context, 1, head_dim]``; the sine carries the sign of the rotation."""
        rotary: Any = model.get_submodule("model.rotary_emb")
        like = torch.zeros((), device=model.device, dtype=torch.float32)
        cos, sin = rotary(like, torch.arange(self.max_context, device=model.device)[None])
        sin = torch.cat([-sin[0, :, : self._head_dim // 2], sin[0, :, self._head_dim // 2 :]], dim=-1)
        cos, sin = cos[0].unsqueeze(1), sin.unsqueeze(1)
        return cos.to(self.device, self.dtype), sin.to(self.device, self.dtype)

    # One step

    def logits(
        self,
        rows: NDArray[np.int64],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        ids: NDArray[np.int32],
        table: NDArray[np.int64],
    ) -> Tensor:
        """Write keys and values of the next tokens of ``m`` requests; float32 ``[m, vocab]``, of each one's last token.

        ``rows`` ``[m]`` says which; ``starts`` and ``counts`` ``[m]`` the first position to compute of each, and how
        many, at least 1. ``ids`` ``[all rows, max_context]`` has the known tokens, ``table`` ``[all rows,
        ceil(max_context / SIZE)]`` the block of each ``SIZE`` positions; any block, where a row has none.
        """
        return self._forward(self._plan(rows, starts, counts, ids, table))

    def row_logits(self, tokens: Tensor, positions: Tensor, cells: Tensor, attention: Paged) -> Tensor:
        """Compute one token of each of ``n`` rows; float32 ``[n, vocab]``. All shapes are the arguments'.

        ``tokens``, ``positions`` and ``cells`` are int64 ``[n]`` on the device: what is computed, where it stands in
        its row (-1 in a row of padding), and where its keys and values go.
        """
        return self._forward(FlatBatch(tokens, positions.clamp(min=0), cells, attention, None))

    def _plan(
        self,
        rows: NDArray[np.int64],
        starts: NDArray[np.int64],
        counts: NDArray[np.int64],
        ids: NDArray[np.int32],
        table: NDArray[np.int64],
    ) -> FlatBatch:
        order = np.lexsort((starts, -counts))
        rows, starts, counts = rows[order], starts[order], counts[order]
        ends = counts.cumsum()
        begins = ends - counts
        row, position = rows, starts
        if ends[-1] > len(rows):  # else all decode
            row, position = np.repeat(rows, counts), np.arange(ends[-1]) + np.repeat(starts - begins, counts)
        # Chunks of a group have at most MOST_KEYS keys, packed; else the longest is less than twice the shortest. Those
        # that decode are split by their number.
        chunks, keys = int(np.count_nonzero(counts > 1)), 0
        bounds: list[int] = []
        for at in range(chunks):
            keys += starts[at] + counts[at]
            if not bounds or (keys > MOST_KEYS if self._packs else 2 * counts[at] <= counts[bounds[-1]]):
                bounds.append(at)
                keys = starts[at] + counts[at]
        bounds += [*range(chunks, len(rows), self._group_rows), len(rows)]
        last = np.empty_like(ends)
        last[order] = ends - 1
        return FlatBatch(
            tokens=self._put(ids[row, position].astype(np.int64)),
            positions=self._put(position),
            cells=self._put(table[row, position // SIZE] * SIZE + position % SIZE),
            groups=[
                self._group(int(begins[a]), table[rows[a:b]], counts[a:b], position[begins[a] : ends[b - 1]])
                for a, b in pairwise(bounds)
            ],
            last=self._put(last),
        )

    def _group(
        self, begin: int, table: NDArray[np.int64], counts: NDArray[np.int64], positions: NDArray[np.int64]
    ) -> _Group:
        (size, queries), end = (len(counts), int(counts[0])), begin + len(positions)
        # Positions of its rows up to its last token, rounded up.
        keys = min(-(-(int(positions.max()) + 1) // self._keys_step) * self._keys_step, self.max_context)
        blocks = table[:, : blocks_for(keys)]
        if queries == 1 and self._cells is not None:
            cells = (blocks[:, :, None] * SIZE + np.arange(SIZE)).reshape(size, -1)[:, :keys]
            return _Group(begin, end, (size, 1), keys, reads=self._cells.reads(self._put(cells), self._put(positions)))
        if queries > 1 and self._packs:
            packed = PackedKeys.plan(blocks, SIZE, counts, positions[counts.cumsum() - 1] + 1, self._put)
            return _Group(begin, end, (size, queries), keys, packed=packed)
        block_ids = self._put(blocks.reshape(-1))
        if queries == 1:
            return _Group(begin, end, (size, 1), keys, block_ids, self._put(positions[:, None]))
        offsets = np.arange(size) * queries - (counts.cumsum() - counts)
        place = np.arange(len(positions)) + np.repeat(offsets, counts)
        query = np.zeros(size * queries, np.int64)
        query[place] = positions
        return _Group(
            begin,
            end,
            (size, queries),
            keys,
            blocks=block_ids,
            queries=self._put(query.reshape(size, queries)),
            place=self._put(place) if len(place) < len(query) else None,
        )

    def _forward(self, batch: FlatBatch) -> Tensor:
        heads, kv_heads, dim = self._heads, self._kv_heads, self._head_dim
        turned = heads + kv_heads  # heads that carry a position: queries and keys
        cos, sin = self._cos[batch.positions], self._sin[batch.positions]
        x = F.embedding(batch.tokens, self._embedding)
        for layer, cache in zip(self._layers, self._kv, strict=True):
            normed = F.rms_norm(x, (x.shape[-1],), layer["attention_norm"][0], self._eps)
            qkv = F.linear(normed, *layer["qkv"]).view(len(x), turned + kv_heads, dim)
            if (norm := layer["q_norm"][0]) is not None:
                qkv[:, :heads] = F.rms_norm(qkv[:, :heads], (dim,), norm, self._eps)
                qkv[:, heads:turned] = F.rms_norm(qkv[:, heads:turned], (dim,), layer["k_norm"][0], self._eps)
            qk = qkv[:, :turned]
            rolled = qk.roll(dim // 2, dims=-1)
            qk.mul_(cos).add_(rolled.mul_(sin))
            cache.index_copy_(0, batch.cells, qkv[:, heads:])
            attended = self._attend_all(qkv[:, :heads], cache, batch.groups)
            if layer is self._layers[-1] and batch.last is not None:  # from here on, only their logits matter
                x, attended = x[batch.last], attended[batch.last]
            x = x + F.linear(attended, *layer["out"])
            normed = F.rms_norm(x, (x.shape[-1],), layer["mlp_norm"][0], self._eps)
            gate, up = F.linear(normed, *layer["gate_up"]).chunk(2, dim=-1)
            x = x + F.linear(self._activation(gate).mul_(up), *layer["down"])
        x = F.rms_norm(x, (x.shape[-1],), self._norm, self._eps)
        if x.device.type == "cuda" and x.dtype != torch.float32:
            return torch.mm(x, self._head.T, out_dtype=torch.float32)  # as the learner: not rounded to 16 bits between
        return F.linear(x, self._head).float()

    def _attend_all(
        self,
        q: Tensor,
        cache: Tensor,
        groups: Sequence[_Group] | Paged,
        scale: float | None = None,
        window: int | None = None,
    ) -> Tensor:
        """Attention of the batch: q ``[n, heads, head_dim]`` to ``[n, heads * head_dim]``."""
        if isinstance(groups, Paged):
            scale = self._head_dim**-0.5 if scale is None else scale
            return groups.attention(q, cache, groups.table, groups.positions, scale=scale, window=window)
        parts = [self._attend(q[group.begin : group.end], cache, group, scale, window) for group in groups]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _attend(
        self, q: Tensor, cache: Tensor, group: _Group, scale: float | None = None, window: int | None = None
    ) -> Tensor:
        """Attention of one group: q ``[end - begin, heads, head_dim]`` to ``[end - begin, heads * head_dim]``.

        A query sees itself and all positions before, or with a ``window`` so many positions. The query heads that share
        a key head are laid out as more queries of that head, so that the keys are read once and never repeated.
        """
        if self._cells is not None and group.reads is not None:
            return self._cells.attend(q, cache, group.reads)
        if group.packed is not None:
            return group.packed.attend(q, cache, scale, window)
        assert group.blocks is not None
        (rows, queries), kv_heads, dim = group.shape, self._kv_heads, self._head_dim
        width = self._heads * dim
        q = q.reshape(-1, width)
        if group.place is not None:
            q = q.new_zeros(rows * queries, width).index_copy_(0, group.place, q)
        if queries == 1:
            q = q.view(rows, kv_heads, -1, dim)
        else:
            q = q.view(rows, queries, kv_heads, -1, dim).permute(0, 2, 3, 1, 4).reshape(rows, kv_heads, -1, dim)
        gathered = cache.view(len(cache) // SIZE, -1).index_select(0, group.blocks).view(rows, -1, 2 * kv_heads, dim)
        kv = gathered[:, : group.keys].transpose(1, 2)
        bias = self._bias(group, window)
        out = F.scaled_dot_product_attention(q, kv[:, :kv_heads], kv[:, kv_heads:], attn_mask=bias, scale=scale)
        if queries > 1:
            out = out.view(rows, kv_heads, -1, queries, dim).permute(0, 3, 1, 2, 4)
        out = out.reshape(rows * queries, width)
        return out if group.place is None else out[group.place]

    def _bias(self, group: _Group, window: int | None) -> Tensor:
        window = window if window is not None and window < group.keys else None
        if window not in group.biases:
            assert group.queries is not None
            keys, query = torch.arange(group.keys, device=self.device), group.queries[:, None, :, None]
            hidden = keys > query if window is None else (keys > query) | (keys <= query - window)
            bias = torch.zeros(hidden.shape, device=self.device, dtype=self.dtype).masked_fill_(hidden, float("-inf"))
            repeats = 1 if group.shape[1] == 1 else self._heads // self._kv_heads
            group.biases[window] = bias.repeat(1, 1, repeats, 1)
        return group.biases[window]

    def _put(self, array: NDArray[Any]) -> Tensor:
        return to_device(array, self.device)


def staged(array: NDArray[Any], device: torch.device) -> Tensor:
    """Return a tensor on the host from which a GPU copies when its stream comes to it, without anybody waiting."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory() if device.type == "cuda" else tensor


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    return staged(array, device).to(device, non_blocking=True)


def _zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Allocate zeros: masked positions get weight 0, and 0 * NaN of uninitialised memory would be NaN."""
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    # From the system itself: the C library's heap may have a large piece left, which it would fill with zeros at once.
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def position_bytes(config: Any, dtype: torch.dtype) -> int:
    return config.num_hidden_layers * 2 * _kv_heads(config) * _head_dim(config) * dtype.itemsize


def _kv_heads(config: Any) -> int:
    return getattr(config, "num_key_value_heads", None) or config.num_attention_heads


def _head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def is_fused(config: Any, max_context: int) -> bool:
    """Return whether :class:`Decoder` computes this model: its family, without windows below the context."""
    slides = "sliding_attention" in (getattr(config, "layer_types", None) or ())
    return config.model_type in FAMILIES and not (slides and config.sliding_window < max_context)


def check_supported(config: Any) -> None:
    """Check the model. ``ValueError``: it has no attention, or its angles depend on more than the position."""
    if not hasattr(config, "num_attention_heads"):
        raise unsupported(f"model type {config.model_type!r}, which has no attention")
    ropes = getattr(config, "rope_parameters", None) or {"rope_type": "default"}
    for rope in [ropes] if "rope_type" in ropes else ropes.values():  # one, or one for each type of layer
        if rope["rope_type"] not in _ROPE_TYPES:
            raise unsupported(f"rope type {rope['rope_type']!r}; it supports {', '.join(_ROPE_TYPES)}")


def unsupported(what: str) -> ValueError:
    return ValueError(f"the torch engine does not support {what}. Use another engine")
