"""The memory that a run needs: an estimate, in bytes on each GPU (or in each process on CPUs). Pure.

Conventions:

* parameters, gradients and AdamW's two moments are float32 (4 + 4 + 8 bytes a parameter) and sharded evenly over the
  ranks, or over ``trainer.fsdp_size`` of them; tensor parallelism cuts the matrices of the blocks first, and what is
  outside the blocks (embeddings and head) is whole on each of its ranks; a frozen reference is its parameters alone; a
  critic counts like the actor. With LoRA, parameters are the model's and the adapters', gradients and moments are the
  adapters' alone (which tensor parallelism is not counted to cut), and the reference is the model without them, for
  nothing. With ``trainer.offload`` all of this is in the CPU's memory, and none of it is counted on a GPU;
* in use, parameters are gathered in the dtype of the computation: those outside the blocks, and the blocks one at a
  time, two at once;
* activations of a micro-batch: 10 + 24 / t bytes per token, layer and unit of width for 2-byte numbers with tensor
  parallelism of t, twice that for 4-byte ones (Korthikanti et al., arXiv 2205.05198, equation 2, without the attention
  matrix, which is never whole); with gradient checkpointing that of one layer, and the inputs of all (which
  ``model.enable_activation_offload`` moves to the CPU); and float32 logits of as many positions as the learner computes
  at once (:func:`trainers.learner.logprobs.positions_at_once`), twice. A micro-batch is counted in a rank's own tokens,
  so sequence parallelism changes nothing here: it is what lets a sequence be longer than that;
* the driver loads the model in float32 on the CPU while it makes an embedded engine of it: that is counted where the
  learner is on the CPU, too, and so are a copy of what is published, as engines compute, and Python itself;
* an engine holds its weights, and keys and values of at most ``engine.kv_cache_gib``: the embedded engine no more than
  its requests can fill (:func:`trainers.cluster.in_flight.slots`), each ``engine.max_context`` long. On a GPU, vLLM
  holds the share that ``engine.vllm.gpu_memory_utilization`` says, and SGLang that of ``--mem-fraction-static``, where
  its ``server_args`` have it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainers.cluster.in_flight import slots
from trainers.engines.base import default_kv_bytes

if TYPE_CHECKING:
    from trainers.config import PPOConfig
    from trainers.config.model import ModelSection

_WITH_CRITIC = ("gae", "turn_gae", "bilevel_gae")
#: Resident memory of a process with torch and transformers, before there is a model.
_LIBRARIES = 400 * 2**20
#: The rows of :func:`estimate` that no chunking and no luck makes smaller, as ``(who, what)``.
CERTAIN = frozenset(
    {
        ("learner", "parameters"),
        ("learner", "gradients"),
        ("learner", "optimizer"),
        ("learner", "weights as loaded"),
        ("engine", "weights"),
        ("engine", "weights, keys and values"),
    }
)


@dataclass(frozen=True)
class ModelShape:
    """What the memory of a model depends on.

    Args:
        parameters: All, tied ones once.
        layers: Blocks.
        hidden: Width.
        kv_width: Numbers of keys (as many of values) that a token has in a layer.
        vocab: Tokens.
        heads: Of queries, in a layer.
        kv_heads: Of keys and values.
        intermediate: Units of a feed-forward layer; 0 where layers differ or do not say.
        outside: Parameters outside the blocks: embeddings, head and the last norm.
        linear: By the last part of their names, the inputs and outputs of the blocks' linear layers, added up over all
            layers: the parameters of an adapter of rank 1.
    """

    parameters: int
    layers: int
    hidden: int
    kv_width: int
    vocab: int
    heads: int
    kv_heads: int
    intermediate: int
    outside: int
    linear: tuple[tuple[str, int], ...] = ()


def estimate(
    config: PPOConfig,
    shape: ModelShape,
    *,
    device: str,
    ranks: int,
    shards: int,
    engine_gpus: int,
    gpu_bytes: int | None,
) -> Iterator[tuple[str, str, int]]:
    """Rows ``(who, what, bytes)``.

    Args:
        config: Of the run.
        shape: Of the policy.
        device: ``cuda`` or ``cpu``.
        ranks: Of the learner.
        shards: Ranks over which its parameters are sharded, beside tensor parallelism.
        engine_gpus: GPUs of one engine.
        gpu_bytes: Memory of a GPU, where it is known.
    """
    yield from _of_learner(config, shape, device, ranks, shards)
    if not config.engine.base_urls:  # those servers have their memory already
        yield from _of_engine(config, shape, device, engine_gpus, gpu_bytes)


def _of_learner(
    config: PPOConfig, shape: ModelShape, device: str, ranks: int, shards: int
) -> Iterator[tuple[str, str, int]]:
    from trainers.learner.logprobs import positions_at_once  # which brings torch; a plan without a model needs none

    tensor = config.trainer.tensor_parallel_size
    inside = shape.parameters - shape.outside
    held = (inside // tensor + shape.outside) // shards
    size = _bytes_of_a_number(config.model)
    trained = 1 + (config.algorithm.adv_estimator in _WITH_CRITIC)
    frozen = int(config.actor.use_kl_loss or config.algorithm.use_kl_in_reward)
    tokens, layers = config.actor.max_tokens_per_micro_batch, max(shape.layers, 1)
    learned, more = held, 0
    if config.model.lora_rank:
        learned = more = _adapter_parameters(config.model, shape) // shards
        frozen = 0
    if not (config.trainer.offload and device == "cuda"):
        yield "learner", "parameters", (trained + frozen) * 4 * held + trained * 4 * more
        yield "learner", "gradients", trained * 4 * learned
        yield "learner", "optimizer", trained * 8 * learned
    if device == "cpu":
        yield "learner", "weights as loaded", 4 * shape.parameters
        yield "learner", "weights on their way", size * shape.parameters
        yield "learner", "Python and its libraries", _LIBRARIES
    if ranks > 1 or config.trainer.offload:
        yield "learner", "gathered layers", size * (shape.outside + 2 * inside // layers // tensor)
    a_layer, inputs = (10 + 24 / tensor) * size / 2 * tokens * shape.hidden, size * tokens * shape.hidden * layers
    activations = a_layer * layers
    if config.model.enable_gradient_checkpointing:
        activations = a_layer + (0 if config.model.enable_activation_offload else inputs)
    positions = min(tokens, positions_at_once(shape.vocab, device))
    yield "learner", "activations", int(activations) + 2 * 4 * positions * shape.vocab


def _of_engine(
    config: PPOConfig, shape: ModelShape, device: str, gpus: int, gpu_bytes: int | None
) -> Iterator[tuple[str, str, int]]:
    engine, size = config.engine, _bytes_of_a_number(config.model)
    if engine.name == "vllm" and device == "cuda":
        if gpu_bytes is not None:
            yield "engine", "weights, keys and values", int(engine.vllm.gpu_memory_utilization * gpu_bytes)
        return
    share = _sglang_share(engine.sglang.server_args) if engine.name == "sglang" and device == "cuda" else None
    if share is not None and gpu_bytes is not None:
        yield "engine", "weights, keys and values", int(share * gpu_bytes)
        return
    yield "engine", "weights", size * shape.parameters // gpus
    context = engine.max_context * max(shape.layers, 1) * 2 * shape.kv_width * size // gpus
    room = default_kv_bytes(gpu_bytes if device == "cuda" else None)
    if engine.kv_cache_gib is not None:
        room = int(engine.kv_cache_gib * 2**30)
    wanted = slots(config) * context
    if engine.name == "vllm":  # which takes it at once
        wanted = room
    elif engine.name == "torch":
        wanted = min(wanted, max(room, context))
    yield "engine", "keys and values", wanted


def _sglang_share(words: Sequence[str]) -> float | None:
    """The share of a GPU's memory that a server takes, where its command line says so."""
    name = "--mem-fraction-static"
    if (text := last_of(words, name)) is None:
        return None
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise ValueError(f"engine.sglang.server_args: {name} is {text!r}; it must be a number between 0 and 1")
    return share


def last_of(words: Sequence[str], *names: str) -> str | None:
    """What a command line says of an option, the last time."""
    value = None
    for at, word in enumerate(words):
        name, equals, rest = word.partition("=")
        if name in names:
            value = rest if equals else "".join(words[at + 1 : at + 2])
    return value


def _bytes_of_a_number(model: ModelSection) -> int:
    return 2 if model.dtype == "bfloat16" else 4


def _adapter_parameters(model: ModelSection, shape: ModelShape) -> int:
    """Of the adapters of one model; what names no layer of it is said when the model is loaded."""
    every = isinstance(model.target_modules, str)
    wanted = {name for name, _ in shape.linear} if every else set(model.target_modules)
    return model.lora_rank * sum(size for name, size in shape.linear if name in wanted - set(model.exclude_modules))
