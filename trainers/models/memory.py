"""Memory of a learner's micro-batch, and the tokens of one that fits. Pure: a plan counts as the learner does."""

from __future__ import annotations

from dataclasses import dataclass

from trainers.config.model import ModelSection
from trainers.config.running import RunSection

#: Tokens of a micro-batch on a CPU, where larger ones are no faster.
CPU_TOKENS = 2048
#: Maximum tokens of a micro-batch on a GPU: beyond, matrices are no faster, and fewer micro-batches balance worse.
_MOST = 16384
_STEP = 512  #: tokens, so that what little else is in memory does not change the number
_SHARE = 0.8  #: of the free memory: the rest is for what is not counted, and for the allocator's gaps
#: Logits of a chunk of the head: 32 MiB on a CPU, where small chunks are as fast; 512 MiB elsewhere.
_LOGITS = {"cpu": 2**23}
_LOGITS_ELSEWHERE = 2**27


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a model that determine its memory."""

    parameters: int  #: all, tied ones once
    layers: int  #: blocks
    hidden: int  #: width
    kv_width: int  #: numbers of keys (as many of values) that a token has in a layer
    vocab: int  #: tokens
    heads: int  #: of queries, in a layer
    kv_heads: int  #: of keys and values
    intermediate: int  #: units of a feed-forward layer; 0 where layers differ or do not say
    outside: int  #: parameters outside the blocks: embeddings, head and the last norm
    #: By the last part of their names, the inputs and outputs of the blocks' linear layers, added up over all layers:
    #: the parameters of an adapter of rank 1
    linear: tuple[tuple[str, int], ...] = ()
    positions: int = 0  #: of its longest context


@dataclass(frozen=True)
class Computation:
    """The settings of a learner that determine the memory of its micro-batches."""

    device: str  #: torch's type of device
    number_bytes: int  #: of a number in the type that is computed in
    tensor: int  #: ranks that share a matrix
    again: bool  #: gradient checkpointing
    away: bool  #: its inputs are stored on the CPU
    adapters: bool  #: only adapters are trained
    lean: bool = False  #: layers that keep less (:mod:`trainers.learner.cpu`)

    @classmethod
    def of(cls, model: ModelSection, run: RunSection, device: str, *, lean: bool = False) -> Computation:
        return cls(
            device,
            2 if model.precision == "bfloat16" else 4,
            run.tensor_parallel_size,
            model.enable_gradient_checkpointing,
            model.enable_activation_offload,
            model.lora_scale > 0,
            lean,
        )

    def layer_bytes(self, shape: ModelShape) -> float:
        """Return the bytes per token that one layer stores for the backward pass."""
        size = self.number_bytes
        if not shape.intermediate:
            return (10 + 24 / self.tensor) * size / 2 * shape.hidden
        # Of each norm its input and output, and in between one in float32; of the others queries, keys, values and what
        # attention makes of them, and four rows of units: of the gate before and after, of its factor, of the product.
        norms = 2 * (2 * size if self.lean else 4 + 2 * size) * shape.hidden
        units = (2 if self.lean and not self.adapters else 4) * shape.intermediate
        queries = shape.heads * shape.kv_width // max(shape.kv_heads, 1)
        return norms + size * (units + 2 * queries + 2 * shape.kv_width) / self.tensor

    def micro_batch_bytes(self, shape: ModelShape, tokens: int) -> int:
        """Return the bytes that a micro-batch takes: activations of its layers, and logits of a chunk."""
        layers = max(shape.layers, 1)
        a_layer, inputs = tokens * self.layer_bytes(shape), self.number_bytes * tokens * shape.hidden * layers
        activations = a_layer * layers
        if self.again:
            activations = a_layer + (0 if self.away else inputs)
        positions = min(tokens, positions_at_once(shape.vocab, self.device))
        return int(activations) + 2 * 4 * positions * shape.vocab

    def gathered_bytes(self, shape: ModelShape) -> int:
        """Return the bytes of the parameters that FSDP2 has gathered at a time: outside the blocks, and two blocks."""
        inside = shape.parameters - shape.outside
        return self.number_bytes * (shape.outside + 2 * inside // max(shape.layers, 1) // self.tensor)

    def tokens_that_fit(self, shape: ModelShape, free: int | None) -> int:
        """Return the tokens of a micro-batch for so many free bytes; ``None``, where that is unknown: the maximum."""
        room = float("inf") if free is None else _SHARE * free
        sizes = range(_MOST, _STEP, -_STEP)
        return next((tokens for tokens in sizes if self.micro_batch_bytes(shape, tokens) <= room), _STEP)


def positions_at_once(vocab: int, device: str) -> int:
    """Return how many positions have logits at the same time by default, on torch's type of device."""
    return max(1, _LOGITS.get(device, _LOGITS_ELSEWHERE) // vocab)
