"""The forward pass of the torch engine: a decoder over a flat batch of tokens, with its own weights, keys and values.

Tokens of many requests lie one after the other in one ``[n]`` batch, so no linear layer ever sees padding. Only
attention needs rows: there the tokens are split into *groups* of requests with similar lengths. Keys and values live in
one tensor a layer, ``[blocks * SIZE, 2 * kv_heads, head_dim]`` (keys first), cut in blocks that requests hold and share
(:mod:`.blocks`); a table says where a request's positions lie. Requests that decode on several threads of a CPU read
them in place (:mod:`.cell_attention`). Any other group gathers its blocks, up to its longest request, just before it
attends to them: they are in the processor's cache then, which more than pays for the copy.

The weights are copied out of a transformers model into fused matrices (q, k, v in one; gate and up in one). Every
parameter of the original keeps its name, as a view into them; that is all that a weight update needs. Models of other
families than :data:`FAMILIES` run through transformers' own modules, on the same blocks (:mod:`.module_decoder`).

Everything is device-agnostic PyTorch, without kernels of its own. It was exercised on the CPU only.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel
from transformers.activations import ACT2FN

from trainers.engines.blocks import SIZE, blocks_for
from trainers.engines.cell_attention import CellAttention, is_faster
from trainers.engines.weights import check_weights, some

FAMILIES = ("qwen2", "qwen3", "llama")
_GROUP_ROWS = 32  # decoding requests of similar lengths: few read far beyond their own, and the cache holds them
# On a GPU a group is a handful of kernel launches a layer, which cost more than keys beyond a request's own.
_GROUP_ROWS_GPU = 256
# There, the keys that a group reads are rounded up: attention kernels want aligned biases, and cuDNN's plans anew for
# every new shape, which decoding would make at every step.
_KEYS_STEP_GPU = 64
_ROPE_TYPES = ("default", "linear", "llama3", "yarn")  # those whose angles depend on the position alone


@dataclass(frozen=True)
class Chunk:
    """The next ``count`` tokens of the request in row ``row``, at positions ``start, start + 1, ...``."""

    row: int
    start: int
    count: int


@dataclass(frozen=True)
class _Group:
    """A contiguous part of the flat batch that attends together, as ``R`` rows of at most ``Q`` new tokens.

    Args:
        begin: First token in the flat batch.
        end: One past the last.
        shape: ``(R, Q)``.
        keys: How many positions of each row to read.
        blocks: int64 ``[R * ceil(keys / SIZE)]``, where they are.
        queries: int64 ``[R, Q]``, positions of the new tokens.
        biases: By attention window (``None``: all positions), ``[R, 1, 1 or Q * (heads / kv_heads), keys]``: 0 where a
            query may look, ``-inf`` elsewhere. Made for the first layer that asks.
        place: int64 ``[end - begin]``, where each token stands in ``[R * Q]``; ``None`` if that is ``0, 1, 2, ...``.
        reads: For a group that reads its cells in place; it needs no ``blocks`` and no biases.
    """

    begin: int
    end: int
    shape: tuple[int, int]
    keys: int
    blocks: Tensor | None = None
    queries: Tensor | None = None
    biases: dict[int | None, Tensor] = field(default_factory=dict)
    place: Tensor | None = None
    reads: Tensor | None = None


@dataclass(frozen=True)
class FlatBatch:
    """One step's work: ``n`` tokens of any number of requests (see :meth:`Decoder.plan`).

    Args:
        tokens: int64 ``[n]``.
        positions: int64 ``[n]``.
        cells: int64 ``[n]``, where each token's keys and values go.
        groups: The parts that attend together; they cover the batch.
        last: int64, the last token of each decoding row and then of each chunk, in the order given.
    """

    tokens: Tensor
    positions: Tensor
    cells: Tensor
    groups: Sequence[_Group]
    last: Tensor


@dataclass
class _Layer:
    attention_norm: Tensor
    qkv: Tensor
    qkv_bias: Tensor | None
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    mlp_norm: Tensor
    gate_up: Tensor
    gate_up_bias: Tensor | None
    down: Tensor
    down_bias: Tensor | None


class Decoder:
    """A causal language model over blocks of keys and values.

    Args:
        model: A transformers model with a language-model head, of one of :data:`FAMILIES`. Its weights are copied.
        blocks: Of :data:`trainers.engines.blocks.SIZE` positions each.
        max_context: Positions of a request.
        device: Where to compute; the model's own device by default.
        dtype: Of weights, keys and values; the model's own by default.
        threads: How many it will be run with on a CPU; PyTorch's setting by default. It decides which way of attending
            is the faster one.

    Raises:
        ValueError: An unsupported feature of the architecture; says which are supported.
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
        self._group_rows, self._keys_step = (_GROUP_ROWS_GPU, _KEYS_STEP_GPU) if gpu else (_GROUP_ROWS, 1)
        self._heads: int = config.num_attention_heads
        self._kv_heads = _kv_heads(config)
        self._head_dim = _head_dim(config)
        self._tied = {"lm_head.weight": "model.embed_tokens.weight"} if config.tie_word_embeddings else {}
        self.parameters: dict[str, Tensor] = {}
        cells = (blocks * SIZE, 2 * self._kv_heads, self._head_dim)
        self._kv = [_zeros(cells, self.device, self.dtype) for _ in range(config.num_hidden_layers)]
        self._cells: CellAttention | None = None
        self._take_model(model, torch.get_num_threads() if threads is None else threads)

    def _take_model(self, model: PreTrainedModel, threads: int) -> None:
        self._eps: float = model.config.rms_norm_eps
        self._activation = ACT2FN[model.config.hidden_act]
        self._take_weights(model)
        self._cos, self._sin = self._rotary_tables(model)
        if is_faster(self.device, self.dtype, threads):
            self._cells = CellAttention(self._heads, self._kv_heads, self._head_dim, self.blocks * SIZE, self.dtype)

    # Weights

    def check_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Refuse weights that are not exactly this model's.

        Raises:
            ValueError: A name is missing or unknown, a shape differs, a value is not finite, or the two ends of a tied
                embedding differ.
        """
        check_weights(weights, {name: value.shape for name, value in self.parameters.items()}, self._tied)

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Copy weights that :meth:`check_weights` accepted. Keys and values computed before are stale afterwards."""
        for name, value in weights.items():
            self.parameters[name].copy_(value)

    @torch.no_grad()
    def _take_weights(self, model: PreTrainedModel) -> None:
        source = model.state_dict()
        left = dict(source)

        def fuse(*names: str) -> Tensor:
            parts = [left.pop(name) for name in names]
            fused = torch.cat([part.to(self.device, self.dtype) for part in parts])  # cat always copies
            for name, view in zip(names, fused.split([len(part) for part in parts]), strict=True):
                self.parameters[name] = view
            return fused

        def fuse_if_any(*names: str) -> Tensor | None:
            return fuse(*names) if names[0] in left else None

        self._embedding = fuse("model.embed_tokens.weight")
        if self._tied:
            left.pop("lm_head.weight", None)
            self._head = self.parameters["lm_head.weight"] = self._embedding
        else:
            self._head = fuse("lm_head.weight")
        self._norm = fuse("model.norm.weight")
        self._layers: list[_Layer] = []
        for index in range(model.config.num_hidden_layers):
            at = f"model.layers.{index}."
            attention, mlp = at + "self_attn.", at + "mlp."
            self._layers.append(
                _Layer(
                    attention_norm=fuse(at + "input_layernorm.weight"),
                    qkv=fuse(*(f"{attention}{x}_proj.weight" for x in "qkv")),
                    qkv_bias=fuse_if_any(*(f"{attention}{x}_proj.bias" for x in "qkv")),
                    q_norm=fuse_if_any(attention + "q_norm.weight"),  # Qwen3: over each head
                    k_norm=fuse_if_any(attention + "k_norm.weight"),
                    out=fuse(attention + "o_proj.weight"),
                    out_bias=fuse_if_any(attention + "o_proj.bias"),
                    mlp_norm=fuse(at + "post_attention_layernorm.weight"),
                    gate_up=fuse(mlp + "gate_proj.weight", mlp + "up_proj.weight"),
                    gate_up_bias=fuse_if_any(mlp + "gate_proj.bias", mlp + "up_proj.bias"),
                    down=fuse(mlp + "down_proj.weight"),
                    down_bias=fuse_if_any(mlp + "down_proj.bias"),
                )
            )
        if left:
            raise ValueError(
                f"the torch engine does not know what to do with the model's {some('weights', sorted(left))}"
                "merge adapters and undo quantisation before serving the model"
            )
        self.check_weights(source)

    @torch.no_grad()
    def _rotary_tables(self, model: PreTrainedModel) -> tuple[Tensor, Tensor]:
        """``[max_context, 1, head_dim]`` each; the sine carries the sign: rotating is a roll and two products."""
        rotary: Any = model.get_submodule("model.rotary_emb")
        like = torch.zeros((), device=model.device, dtype=torch.float32)
        cos, sin = rotary(like, torch.arange(self.max_context, device=model.device)[None])
        sin = torch.cat([-sin[0, :, : self._head_dim // 2], sin[0, :, self._head_dim // 2 :]], dim=-1)
        cos, sin = cos[0].unsqueeze(1), sin.unsqueeze(1)
        return cos.to(self.device, self.dtype), sin.to(self.device, self.dtype)

    # One step

    def plan(
        self,
        decode_rows: NDArray[np.int64],
        lengths: NDArray[np.int64],
        chunks: Sequence[Chunk],
        ids: NDArray[np.int32],
        table: NDArray[np.int64],
    ) -> FlatBatch:
        """Lay out a step.

        Args:
            decode_rows: Rows whose last known token alone is to be computed, the shortest first.
            lengths: For each row, how many tokens are known.
            chunks: Longer runs of tokens to be computed.
            ids: ``[rows, max_context]``, the known tokens.
            table: ``[rows, ceil(max_context / SIZE)]``, the block of each ``SIZE`` positions; any block, where a
                row has none.
        """
        rows, positions = [decode_rows], [lengths[decode_rows] - 1]
        size = self._group_rows
        groups = [
            self._decode_group(at, table[decode_rows[at : at + size]], positions[0][at : at + size])
            for at in range(0, len(decode_rows), size)
        ]
        last = [np.arange(len(decode_rows))]
        begin = len(decode_rows)
        ends = np.zeros(len(chunks), np.int64)
        for members in _similar(chunks):
            part = [chunks[i] for i in members]
            counts = np.array([chunk.count for chunk in part])
            rows.append(np.repeat([chunk.row for chunk in part], counts))
            positions.append(np.concatenate([np.arange(chunk.start, chunk.start + chunk.count) for chunk in part]))
            ends[members] = begin + counts.cumsum() - 1
            groups.append(self._chunk_group(begin, part, counts, positions[-1], table))
            begin += int(counts.sum())
        row, position = np.concatenate(rows), np.concatenate(positions)
        last.append(ends)
        return FlatBatch(
            tokens=self._put(ids[row, position].astype(np.int64)),
            positions=self._put(position),
            cells=self._put(table[row, position // SIZE] * SIZE + position % SIZE),
            groups=groups,
            last=self._put(np.concatenate(last)),
        )

    def logits(self, batch: FlatBatch) -> Tensor:
        """Compute a step: write keys and values of all its tokens; float32 logits ``[len(batch.last), vocab]``."""
        heads, kv_heads, dim = self._heads, self._kv_heads, self._head_dim
        turned = heads + kv_heads  # heads that carry a position: queries and keys
        cos, sin = self._cos[batch.positions], self._sin[batch.positions]
        x = F.embedding(batch.tokens, self._embedding)
        for layer, cache in zip(self._layers, self._kv, strict=True):
            normed = F.rms_norm(x, (x.shape[-1],), layer.attention_norm, self._eps)
            qkv = F.linear(normed, layer.qkv, layer.qkv_bias).view(len(x), turned + kv_heads, dim)
            if layer.q_norm is not None and layer.k_norm is not None:
                qkv[:, :heads] = F.rms_norm(qkv[:, :heads], (dim,), layer.q_norm, self._eps)
                qkv[:, heads:turned] = F.rms_norm(qkv[:, heads:turned], (dim,), layer.k_norm, self._eps)
            qk = qkv[:, :turned]
            rolled = qk.roll(dim // 2, dims=-1)
            qk.mul_(cos).add_(rolled.mul_(sin))
            cache.index_copy_(0, batch.cells, qkv[:, heads:])
            parts = [self._attend(qkv[group.begin : group.end, :heads], cache, group) for group in batch.groups]
            attended = parts[0] if len(parts) == 1 else torch.cat(parts)
            if layer is self._layers[-1]:  # from here on, only the tokens whose logits are wanted matter
                x, attended = x[batch.last], attended[batch.last]
            x = x + F.linear(attended, layer.out, layer.out_bias)
            normed = F.rms_norm(x, (x.shape[-1],), layer.mlp_norm, self._eps)
            gate, up = F.linear(normed, layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
            x = x + F.linear(self._activation(gate).mul_(up), layer.down, layer.down_bias)
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
        found = cache.view(self.blocks, -1).index_select(0, group.blocks).view(rows, -1, 2 * kv_heads, dim)
        kv = found[:, : group.keys].transpose(1, 2)
        bias = self._bias(group, window)
        out = F.scaled_dot_product_attention(q, kv[:, :kv_heads], kv[:, kv_heads:], attn_mask=bias, scale=scale)
        if queries > 1:
            out = out.view(rows, kv_heads, -1, queries, dim).permute(0, 3, 1, 2, 4)
        out = out.reshape(rows * queries, width)
        return out if group.place is None else out[group.place]

    def _decode_group(self, begin: int, table: NDArray[np.int64], positions: NDArray[np.int64]) -> _Group:
        keys, count = self._keys(positions), len(positions)
        end, blocks = begin + count, table[:, : blocks_for(keys)]
        if self._cells is not None:
            cells = (blocks[:, :, None] * SIZE + np.arange(SIZE)).reshape(count, -1)[:, :keys]
            return _Group(begin, end, (count, 1), keys, reads=self._cells.reads(self._put(cells), self._put(positions)))
        queries = self._put(positions[:, None])
        return _Group(begin, end, (count, 1), keys, blocks=self._put(blocks.reshape(-1)), queries=queries)

    def _chunk_group(
        self,
        begin: int,
        chunks: Sequence[Chunk],
        counts: NDArray[np.int64],
        positions: NDArray[np.int64],
        table: NDArray[np.int64],
    ) -> _Group:
        queries = int(counts.max())
        place = np.concatenate([np.arange(count) + row * queries for row, count in enumerate(counts)])
        query = np.zeros(len(chunks) * queries, np.int64)
        query[place] = positions
        keys = self._keys(positions)
        return _Group(
            begin=begin,
            end=begin + len(positions),
            shape=(len(chunks), queries),
            blocks=self._put(table[[chunk.row for chunk in chunks], : blocks_for(keys)].reshape(-1)),
            keys=keys,
            queries=self._put(query.reshape(len(chunks), queries)),
            place=self._put(place) if len(place) < len(query) else None,
        )

    def _keys(self, positions: NDArray[np.int64]) -> int:
        """How many positions of its rows a group reads: those up to its last token, rounded up."""
        return min(-(-(int(positions.max()) + 1) // self._keys_step) * self._keys_step, self.max_context)

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

    def _put(self, array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(self.device)


def _zeros(shape: tuple[int, ...], device: torch.device, dtype: torch.dtype) -> Tensor:
    """Zeros, not empty: masked positions get weight 0, and 0 * NaN of uninitialised memory would be NaN.

    On a CPU they are no memory before they are written, where torch writes its own at once.
    """
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    # From the system itself: the C library's heap may have a large piece left, which it would fill with zeros at once.
    memory = mmap.mmap(-1, math.prod(shape) * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def position_bytes(config: Any, dtype: torch.dtype) -> int:
    """What keys and values of one position take, in all layers."""
    return config.num_hidden_layers * 2 * _kv_heads(config) * _head_dim(config) * dtype.itemsize


def _kv_heads(config: Any) -> int:
    return getattr(config, "num_key_value_heads", None) or config.num_attention_heads


def _head_dim(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def is_fused(config: Any, max_context: int) -> bool:
    """Whether :class:`Decoder` computes this model: its family, where no window is shorter than the context."""
    slides = "sliding_attention" in (getattr(config, "layer_types", None) or ())
    return config.model_type in FAMILIES and not (slides and config.sliding_window < max_context)


def check_supported(config: Any) -> None:
    """Raises ``ValueError``: the model has no attention, or its angles depend on more than the position."""
    if not hasattr(config, "num_attention_heads"):
        raise ValueError(f"the torch engine does not support model type {config.model_type!r}, which has no attention")
    ropes = getattr(config, "rope_parameters", None) or {"rope_type": "default"}
    for rope in [ropes] if "rope_type" in ropes else ropes.values():  # one, or one for each type of layer
        if rope["rope_type"] not in _ROPE_TYPES:
            raise ValueError(
                f"the torch engine does not support rope type {rope['rope_type']!r}; it supports "
                f"{', '.join(_ROPE_TYPES)}. Use another engine"
            )


def _similar(chunks: Sequence[Chunk]) -> list[list[int]]:
    """Indices grouped so that within a group the longest chunk is less than twice the shortest."""
    groups: list[list[int]] = []
    for index in sorted(range(len(chunks)), key=lambda i: -chunks[i].count):
        if groups and 2 * chunks[index].count > chunks[groups[-1][0]].count:
            groups[-1].append(index)
        else:
            groups.append([index])
    return groups
