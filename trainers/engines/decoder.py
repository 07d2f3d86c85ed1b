"""The computation of the torch engine: the forward pass over a flat batch of tokens, and sampling from its logits.

Tokens of many requests lie one after the other in one ``[n]`` batch, so no linear layer sees padding. Attention works
on *groups* of requests with similar lengths. Keys and values live in one tensor a layer, ``[blocks * SIZE, 2 *
kv_heads, head_dim]`` (keys first), cut in blocks that requests hold and share (:class:`.scheduler.BlockPool`); a table
says where a request's positions lie. Requests that decode on several threads of a CPU read them in place
(:class:`CellAttention`); any other group gathers its blocks just before it attends: they are in the processor's cache
then.

The weights are copied into fused matrices (q, k, v in one; gate and up in one), of which each parameter of the original
is a view with its name: all that a weight update needs. Other families than :data:`FAMILIES` run through transformers'
own modules, on the same blocks (:mod:`.module_decoder`).

The randomness of a token is a hash of the request's seed and the token's position in the context, so it depends neither
on the batch nor on chunks nor on earlier draws; a resumed generation continues as it would have.
"""

from __future__ import annotations

import math
import mmap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
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

#: Sampling parameters of a row; see :class:`trainers.engines.base.Sampling`. Aligned, so that a column can be a tensor.
ROW = np.dtype(
    [
        ("temperature", np.float32),
        ("top_p", np.float32),
        ("min_p", np.float32),
        ("return_kept", np.bool_),
        ("top_k", np.int64),
        ("seed", np.uint64),
    ],
    align=True,
)

_GROUP_ROWS = 32  # decoding requests of similar lengths: few read far beyond their own, and the cache holds them
# On a GPU a group is a handful of kernel launches a layer, which cost more than keys beyond a request's own.
_GROUP_ROWS_GPU = 256
# There, the keys that a group reads are rounded up: attention kernels want aligned biases.
_KEYS_STEP_GPU = 64
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")  # those whose angles depend on the position alone
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


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
class FlatBatch:
    """One step's work: ``n`` tokens of any number of requests."""

    tokens: Tensor  # int64 [n]
    positions: Tensor  # int64 [n]
    cells: Tensor  # int64 [n], where each token's keys and values go
    groups: Sequence[_Group]  # the parts that attend together; they cover the batch
    last: Tensor  # int64, the last token of each request, in the order in which they were given


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
        self._freed: list[tuple[torch.UntypedStorage, int]] = []  # of the weights, with the size to restore
        self._cells: CellAttention | None = None
        self._take_model(model, torch.get_num_threads() if threads is None else threads)

    def _take_model(self, model: PreTrainedModel, threads: int) -> None:
        self._eps: float = model.config.rms_norm_eps
        self._activation = ACT2FN[model.config.hidden_act]
        self._take_weights(model)
        self._cos, self._sin = self._rotary_tables(model)
        if is_faster(self.device, self.dtype, threads):
            self._cells = CellAttention(self._heads, self._kv_heads, self._head_dim, self.blocks * SIZE, self.dtype)

    # Keys and values

    @property
    def _kv(self) -> list[Tensor]:
        """Keys and values of each layer, ``[blocks * SIZE, keys and values of all heads, head_dim]``."""
        if not self._cache:
            cells = (self.blocks * SIZE, 2 * self._kv_heads, self._head_dim)
            self._cache = [_zeros(cells, self.device, self.dtype) for _ in range(self._num_layers)]
        return self._cache

    def free_cache(self) -> None:
        """Release the memory of all keys and values; the next step allocates it again, with zeros."""
        self._cache = []

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
            parts = [self._attend(qkv[group.begin : group.end, :heads], cache, group) for group in batch.groups]
            attended = parts[0] if len(parts) == 1 else torch.cat(parts)
            if layer is self._layers[-1]:  # from here on, only the tokens whose logits are wanted matter
                x, attended = x[batch.last], attended[batch.last]
            x = x + F.linear(attended, *layer["out"])
            normed = F.rms_norm(x, (x.shape[-1],), layer["mlp_norm"][0], self._eps)
            gate, up = F.linear(normed, *layer["gate_up"]).chunk(2, dim=-1)
            x = x + F.linear(self._activation(gate).mul_(up), *layer["down"])
        x = F.rms_norm(x, (x.shape[-1],), self._norm, self._eps)
        if x.device.type == "cuda" and x.dtype != torch.float32:
            return torch.mm(x, self._head.T, out_dtype=torch.float32)  # as the learner: not rounded to 16 bits between
        return F.linear(x, self._head).float()

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
        gathered = cache.view(self.blocks, -1).index_select(0, group.blocks).view(rows, -1, 2 * kv_heads, dim)
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
        return torch.from_numpy(array).to(self.device)


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


def mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply SplitMix64's finaliser (Steele, Lea, Flood, 2014): every bit of ``x`` reaches every bit of the result."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.float64]:
    """Draw a number in ``[0, 1)`` for each pair, float64 ``[n]``: SplitMix64's position-th output from a mixed seed.

    They are multiples of ``2**-52``, so that a product with a positive total stays below that total.
    """
    state = mix(seeds + _GOLDEN) + (positions.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    return (mix(state) >> np.uint64(12)).astype(np.float64) * 2.0**-52


def sample(
    logits: Tensor, rows: NDArray[np.void], uniform: NDArray[np.float64]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Draw a token for each row, by inverting the cumulative distribution at a uniform number in ``[0, 1)``.

    ``logits`` is float32 ``[n, vocab]``, ``rows`` :data:`ROW` ``[n]``, ``uniform`` ``[n]``.

    Returns:
        int64 tokens ``[n]``; float32 log-probs ``[n]`` at the temperature over the full vocabulary, and after the cuts
        (0 for greedy rows); int64 ``[m, 2]``: row and token of what the cuts left in rows with ``return_kept``.
    """
    device = logits.device

    def put(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(device)

    temperature = rows["temperature"]
    greedy = temperature == 0
    if ((temperature != 1) & ~greedy).any():
        logits = logits / put(np.where(greedy, np.float32(1), temperature))[:, None]
    logprobs = logits.log_softmax(-1)
    if greedy.all():
        tokens = logprobs.argmax(-1)
        logprob = logprobs.gather(1, tokens[:, None]).squeeze(1)
        return tokens, logprob, torch.zeros_like(logprob), tokens.new_zeros(0, 2)

    weights = logprobs.exp()  # of the draw: probabilities, 0 where cut
    reported_pairs = torch.zeros(0, 2, dtype=torch.int64, device=device)
    cut = ((rows["top_k"] > 0) | (rows["top_p"] < 1) | (rows["min_p"] > 0)) & ~greedy
    if cut.any():
        which = put(np.flatnonzero(cut))
        remaining = _cut(weights[which], *(put(rows[cut][name]) for name in ("top_k", "top_p", "min_p")))
        weights = weights.index_copy(0, which, remaining)
        if (reported := rows["return_kept"] & cut).any():
            reported_pairs = ((weights > 0) & put(reported)[:, None]).nonzero()
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    total = cumulative[:, -1:]
    # The first token whose cumulative weight exceeds the draw, so never one of weight 0.
    tokens = torch.searchsorted(cumulative, put(uniform)[:, None] * total, right=True).squeeze(1)
    if greedy.any():
        tokens = torch.where(put(greedy), logprobs.argmax(-1), tokens)
    logprob = logprobs.gather(1, tokens[:, None]).squeeze(1)
    sampled = logprob
    if cut.any():
        sampled = torch.where(put(cut), logprob - total.squeeze(1).log().float(), sampled)
    if greedy.any():
        sampled = sampled.masked_fill(put(greedy), 0.0)
    return tokens, logprob, sampled, reported_pairs


def _cut(probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Set to 0 what the cuts remove; ``probs [n, vocab]``, parameters ``[n]``.

    In this order: the ``k`` most likely; of those, renormalised, the smallest set that reaches ``top_p``; of those, the
    ones of at least ``min_p`` times the most likely. Ties go to the smaller id. The most likely token always stays.
    """
    vocab = probs.shape[-1]
    ordered, ids = probs.sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(vocab, device=probs.device)
    limit = torch.where(top_k > 0, top_k, vocab)[:, None]
    ordered = ordered.masked_fill(rank >= limit, 0.0)
    before = ordered.double().cumsum(-1) - ordered
    mass = ordered.sum(-1, dtype=torch.float64, keepdim=True)
    drop = (before >= top_p[:, None].double() * mass) & (top_p < 1)[:, None]
    drop |= ordered < min_p[:, None] * ordered[:, :1]
    drop[:, 0] = False
    return torch.zeros_like(probs).scatter_(1, ids, ordered.masked_fill_(drop, 0.0))
