"""Memory estimates of a run's parts, in bytes per GPU (or per process on CPUs). Pure.

:mod:`.timeline` says when each part is there, and compares their sums with the memory available. Conventions:

* parameters, gradients and AdamW's two moments are float32 (4 + 4 + 8 bytes a parameter), sharded evenly over the ranks
  or ``trainer.fsdp_size`` of them; tensor parallelism cuts the blocks' matrices first, and embeddings and head are
  whole on each of its ranks; a reference is its parameters alone; a critic counts like the actor. With LoRA, gradients
  and moments are the adapters' alone, frozen weights are in the dtype of the computation, and the reference costs
  nothing. With ``trainer.offload`` none of it is on a GPU;
* parameters in use are gathered in the dtype of the computation: those outside the blocks, and two blocks at once; one
  CPU rank in bfloat16 has rounded copies of all, unless it computes activations again or compiles;
* activations of a micro-batch (:mod:`trainers.models.memory`): what a layer with gated units stores for backward, or
  where the number of units is not known, 10 + 24 / t bytes per token, layer and unit of width for 2-byte numbers with
  tensor parallelism of t, twice that for 4-byte ones (Korthikanti et al., arXiv 2205.05198, equation 2, without the
  attention matrix); with gradient checkpointing that of one layer, and the inputs of all (unless
  ``model.enable_activation_offload``); and float32 logits of as many positions as the learner computes at once
  (:func:`trainers.models.memory.positions_at_once`), twice;
* on CPUs the driver's float32 model, Python itself, and a copy of what is published count, too: for embedded engines in
  Ray actors, and for servers with ``rollout.staleness``;
* an engine holds its weights, and keys and values of at most ``engine.kv_cache_gib``: the embedded engine no more than
  its requests can fill (:func:`trainers.config.sizes.slots`). On a GPU, vLLM wants the share free that
  ``engine.vllm.gpu_memory_utilization`` says, and holds it, or its weights and ``engine.kv_cache_gib`` where that is
  given; SGLang holds that of ``--mem-fraction-static`` in its ``server_args``, else what its requests can fill.
  The embedded engine's decoding steps take what :mod:`trainers.engines.step_memory` says, also in the CUDA graphs that
  hold them, for the kind of sampling of this run; it frees that when it sleeps.
  Replicas that share a place add up. An engine in a process of its own has a CUDA context, and vLLM's CUDA graphs stay
  when it sleeps: 1 GiB, an assumption that was not measured;
* weights reach a server on the learner's devices by ``ipc`` in two buckets, each of ``bucket_mib`` or the embeddings;
  a process group has one on each side. Before, one whole parameter is gathered from the ranks, or cast;
* a user or judge whose model is a folder has an embedded engine of its own, in the driver.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from trainers.config.engine import ServedEngineSection, SGLangEngineSection, TorchEngineSection, VLLMEngineSection
from trainers.config.sizes import sleep_level, slots
from trainers.engines.base import default_kv_bytes
from trainers.engines.step_memory import StepKind, engine_bytes
from trainers.models.memory import CPU_TOKENS, Computation, ModelShape

if TYPE_CHECKING:
    from trainers.config import PPOConfig
    from trainers.config.model import ModelSection


class PlanError(ValueError):
    """The configuration cannot be placed; the message says which numbers clash, and what would do."""


@dataclass(frozen=True)
class Machine:
    """The machine that a plan is for: this one, or a described one (:meth:`described`)."""

    gpus: int = 0  #: GPUs that torch sees on this machine, or of each described machine
    gpu_bytes: int | None = None  #: memory of the smallest GPU; ``None`` if unknown
    gpu_free: int | None = None  #: free memory of the fullest GPU; ``None`` if unknown
    ram_bytes: int | None = None  #: main memory that processes can still allocate; ``None`` if unknown
    world: int = 1  #: processes started together, as by torchrun: ranks of a learner in this process
    nodes: int | None = None  #: described machines; ``None`` is this machine, to which Ray may add others

    @classmethod
    def described(cls, text: str) -> Machine:
        """Parse ``GPUS@GIB`` or ``NODESxGPUS@GIB``: GPUs of a machine and memory of a GPU. Raises PlanError."""
        match = re.fullmatch(r"(?:([1-9]\d*)x)?([1-9]\d*)@([1-9]\d*(?:\.\d+)?)", text)
        if match is None:
            raise PlanError(
                f"--plan-for {text}: it must be GPUS@GIB (4@80: 4 GPUs of 80 GiB), or NODESxGPUS@GIB (2x8@80)"
            )
        return cls(int(match[2]), int(float(match[3]) * _GIB), nodes=int(match[1] or 1))

    @property
    def says(self) -> str:
        return f"torch sees {self.gpus} here" if self.nodes is None else f"each machine of --plan-for has {self.gpus}"


def available(root: Path = Path("/")) -> int | None:
    """Return the bytes that processes of this machine or container can still allocate; ``None`` if unknown.

    The minimum of ``MemAvailable`` and, for each control group from this process's own upwards, its limit less its
    usage (page cache that can be dropped does not count as used). ``proc`` and ``sys`` are in ``root``.
    """
    limits = list(_of_groups(root))
    for line in _read(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            limits.append(int(rest.split()[0]) * 1024)
    return max(0, min(limits)) if limits else None


def _of_groups(root: Path) -> Iterator[int]:
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # In a container the path may be the host's; the container's own limit is then at the base.
        own = base / path.strip("/")
        for folder in [parent for parent in (own, *own.parents) if parent.is_relative_to(base)]:
            limit, used = _read(folder / names[0]).strip(), _read(folder / names[1]).strip()
            if limit.isdigit() and used.isdigit():
                yield int(limit) - int(used) + _dropped(folder, names[2])


def _dropped(folder: Path, name: str) -> int:
    for line in _read(folder / "memory.stat").splitlines():
        if line.startswith(f"{name} "):
            return int(line.split()[1])
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


_GIB = 2**30
#: Resident memory of a process with torch and transformers, before there is a model.
ON_THEIR_WAY, GATHERED = "weights on their way", "gathered parameter"
BUCKETS, BUCKET = "buckets of weights", "bucket of weights"  #: of ``ipc``, and of a process group
RESERVED = "reserved keys and values"  #: by a server, whatever its requests need
CONTEXT = "CUDA context and graphs"  #: of an engine's own process
STEPS = "decoding steps"  #: of the embedded engine, on a GPU
_CONTEXT_BYTES = 2**30
_LIBRARIES = 400 * 2**20
SERVED = "users and judges"  #: whose models are folders
Rows = Sequence[tuple[str, str, int]]  #: ``(who, what, bytes)``
MomentName = Literal["rolling out", "learning", "updating", "waking", "at once"]
#: In the order of an iteration. A server that slept takes memory for keys and values in the last one.
MOMENTS: tuple[MomentName, ...] = ("rolling out", "learning", "updating", "waking")
_OF_LEARNING = ("gradients", "gathered layers", "activations")
_OF_UPDATING = (GATHERED, BUCKET)
#: The rows of :func:`estimate` that no chunking and no luck makes smaller, as ``(who, what)``.
CERTAIN = frozenset(
    [
        *(
            ("learner", what)
            for what in ("parameters", "gradients", "optimizer", "weights as loaded", "rounded parameters")
        ),
        *(("engine", what) for what in ("weights", RESERVED)),
        (SERVED, "weights"),
    ]
)


def estimate(
    config: PPOConfig,
    shape: ModelShape,
    *,
    device: str,
    ranks: int,
    shards: int,
    engine_gpus: int,
    gpu_bytes: int | None,
    gpu_free: int | None = None,
    served: Sequence[tuple[int, int, int]] = (),
    teacher: ModelShape | None = None,
) -> Iterator[tuple[str, str, int]]:
    """Yield rows ``(who, what, bytes)``; ``shards`` ranks share the learner's parameters, beside tensor parallelism.

    ``engine_gpus`` is of one engine; ``gpu_bytes`` the memory of a GPU, ``gpu_free`` what is free of it, where they are
    known; ``served`` are the bytes of each user's and judge's weights, of its keys and values, and of its decoding
    steps, where its model is a folder. ``teacher`` is the model of `actor.distill.teacher`, where that is a folder.
    """
    learner, rows = list(_of_learner(config, shape, device, ranks, shards)), list[tuple[str, str, int]]()
    if teacher is not None and not (config.trainer.offload and device == "cuda"):
        computation = Computation.of(config.model, config.trainer, device)
        learner.append(("learner", "teacher", 4 * _held(teacher, computation, shards)))
    if not config.engine.base_urls:  # those servers have their memory already
        rows += _of_engine(config, shape, device, engine_gpus, gpu_bytes)
    if served:
        for what, sizes in zip(("weights", "keys and values", STEPS), zip(*served, strict=True), strict=True):
            if sum(sizes):
                rows.append((SERVED, what, sum(sizes)))
    yield from learner
    free = gpu_bytes if gpu_free is None else gpu_free
    yield "learner", "activations", _activations(config, shape, device, ranks, [*learner, *rows], free)
    yield from rows


def is_there(who: str, what: str, moment: MomentName, level: int) -> bool:
    """Return whether a part is in a GPU's memory at a moment, with engines on it that sleep so deeply."""
    if what in _OF_LEARNING:
        return moment == "learning"
    if what in _OF_UPDATING or (what == BUCKETS and level):
        return moment == "updating"
    if who != "engine" or what == CONTEXT or not level:
        return True
    return moment in ("rolling out", "waking") or (what == "weights" and (moment == "updating" or level == 1))


def _number_size(config: PPOConfig) -> int:
    return 2 if config.model.dtype == "bfloat16" else 4


def _held(shape: ModelShape, computation: Computation, shards: int) -> int:
    """Return a rank's parameters of a model."""
    return ((shape.parameters - shape.outside) // computation.tensor + shape.outside) // shards


def _of_learner(
    config: PPOConfig, shape: ModelShape, device: str, ranks: int, shards: int
) -> Iterator[tuple[str, str, int]]:
    computation = Computation.of(config.model, config.trainer, device)
    held = _held(shape, computation, shards)
    size = _number_size(config)
    trained = 1 + ("critic" in config.algorithm.needs)
    frozen = int(config.needs_reference)
    learned, adapters, parameter_bytes = held, 0, 4
    if config.model.lora_rank:
        learned = adapters = _adapter_parameters(config.model, shape) // shards
        frozen, parameter_bytes = 0, size
    if not (config.trainer.offload and device == "cuda"):
        yield "learner", "parameters", (trained + frozen) * parameter_bytes * held + trained * 4 * adapters
        yield "learner", "gradients", trained * 4 * learned
        yield "learner", "optimizer", trained * 8 * learned
    if device == "cpu":
        yield "learner", "weights as loaded", 4 * shape.parameters
        copied = config.cluster.backend == "ray" if config.engine.name == "torch" else config.rollout.staleness
        if copied:
            yield "learner", ON_THEIR_WAY, size * shape.parameters
        yield "learner", "Python and its libraries", _LIBRARIES
    yield from (row for row in _buckets(config, shape, device) if row[0] == "learner")
    casts = size == 2 and config.engine.name != "torch"
    if device == "cuda" and not config.trainer.offload and (ranks > 1 or casts):
        yield "learner", GATHERED, _largest_parameter(config, shape)
    if _rounds(config, device, ranks):
        rounded = adapters if config.model.lora_rank else shape.parameters
        yield "learner", "rounded parameters", size * (trained + frozen) * rounded
    elif ranks > 1 or config.trainer.offload or size == 2:
        yield "learner", "gathered layers", computation.gathered_bytes(shape)


def _activations(
    config: PPOConfig, shape: ModelShape, device: str, ranks: int, rows: Rows, gpu_free: int | None
) -> int:
    """Return the bytes of a micro-batch; ``rows`` are of what else there is, on a GPU with ``gpu_free`` bytes.

    Its tokens are those that the learner takes (:meth:`~trainers.models.memory.Computation.tokens_that_fit`), or those
    of the longest episode, which stands alone.
    """
    computation = Computation.of(config.model, config.trainer, device, lean=_rounds(config, device, ranks))
    tokens = config.actor.max_tokens_per_micro_batch
    if tokens is None:
        level, apart = sleep_level(config, device), not config.cluster.colocate
        charged = [row for row in rows if not (apart and row[0] == "engine")]
        present = sum(size for who, what, size in charged if is_there(who, what, "learning", level))
        free = None if gpu_free is None else gpu_free - present
        fits = CPU_TOKENS if device == "cpu" else computation.tokens_that_fit(shape, free)
        tokens = max(fits, config.engine.max_context)
    return computation.micro_batch_bytes(shape, tokens)


def _rounds(config: PPOConfig, device: str, ranks: int) -> bool:
    """Return whether the learner computes with rounded copies (:mod:`trainers.learner.cpu`) instead of FSDP2."""
    again = config.model.enable_gradient_checkpointing or config.model.compile is True
    alone = device == "cpu" and ranks == 1 and config.trainer.fsdp != "always"
    return alone and _number_size(config) == 2 and not again


def _of_engine(
    config: PPOConfig, shape: ModelShape, device: str, gpus: int, gpu_bytes: int | None
) -> Iterator[tuple[str, str, int]]:
    engine, size = config.engine, _number_size(config)
    weights = size * shape.parameters // gpus
    yield "engine", "weights", weights
    if device == "cuda" and (engine.name != "torch" or config.cluster.backend == "ray"):
        yield "engine", CONTEXT, _CONTEXT_BYTES
    yield from (row for row in _buckets(config, shape, device) if row[0] == "engine")
    context = engine.max_context * max(shape.layers, 1) * 2 * shape.kv_width * size // gpus
    steps = 0
    if device == "cuda" and isinstance(engine, TorchEngineSection):
        steps = engine_bytes(slots(config), shape.vocab, _kind_of(config), graphs=engine.cuda_graphs)
        yield "engine", STEPS, steps
    room = engine.kv_cache_bytes or default_kv_bytes(gpu_bytes if device == "cuda" else None, steps)
    if device == "cuda" and (share := _share(config)) is not None:
        if gpu_bytes is not None:
            reserved, key = int(share[0] * gpu_bytes) - weights, share[1]
            if reserved < 0 and engine.kv_cache_bytes is None:
                raise PlanError(
                    f"{key} gives the engine {share[0] * gpu_bytes / _GIB:.1f} GiB on a GPU, and its weights alone are "
                    f"{weights / _GIB:.1f}: raise it, or engine.tensor_parallel_size (now {gpus})"
                )
            yield "engine", RESERVED, max(reserved, engine.kv_cache_bytes or 0)
        return
    needed = slots(config) * context
    if engine.name == "vllm":  # which takes it at once
        needed = room
    elif engine.name == "torch":
        needed = min(needed, max(room, context))
    yield "engine", "keys and values", needed


def _kind_of(config: PPOConfig) -> StepKind:
    """Return the largest kind of decoding step that this run's sampling needs."""
    rollout = config.rollout
    if rollout.keep_sampling_mask:
        return "whole"
    cut = rollout.top_k > 0 or rollout.min_p > 0 or min(rollout.top_p, config.validation.top_p) < 1
    return "cut" if cut else "plain"


def _share(config: PPOConfig) -> tuple[float, str] | None:
    """Return the share of a GPU's memory that a server takes for weights, keys and values, and its key."""
    engine = config.engine
    if isinstance(engine, VLLMEngineSection):
        share = engine.vllm.gpu_memory_utilization
        return share, f"engine.vllm.gpu_memory_utilization={share:g}"
    if isinstance(engine, SGLangEngineSection) and (share_of := _sglang_share(engine.sglang.server_args)) is not None:
        return share_of, f"--mem-fraction-static {share_of:g} in engine.sglang.server_args"
    return None


def _largest_parameter(config: PPOConfig, shape: ModelShape) -> int:
    """Return the bytes of the embeddings: a parameter travels whole."""
    return _number_size(config) * shape.vocab * shape.hidden


def _buckets(config: PPOConfig, shape: ModelShape, device: str) -> Iterator[tuple[str, str, int]]:
    """Yield rows of the buckets on their way to one server, on the learner's and on the server's device.

    A server in ``base_url`` with an address of this machine counts as one on the learner's devices.
    """
    engine, size = config.engine, _number_size(config)
    if not isinstance(engine, ServedEngineSection) or engine.weight_transport not in ("auto", "ipc", "process_group"):
        return
    bucket = min(max(engine.server.bucket_mib * 2**20, _largest_parameter(config, shape)), size * shape.parameters)
    shares = bool(local_servers(config)) if engine.base_urls else device == "cpu" or config.cluster.colocate
    if engine.weight_transport == "ipc" or (engine.weight_transport == "auto" and shares):
        yield "learner", BUCKETS, 2 * bucket
    elif device == "cuda":
        yield "learner", BUCKET, bucket
        if not shares:  # otherwise it goes by gloo, from the CPU
            yield "engine", BUCKET, bucket


def pairs_of_buckets(config: PPOConfig, engines: int) -> int:
    """Return the pairs of buckets in a process of the learner: a rank has one for all servers, else each has one."""
    if config.cluster.backend == "ray":
        return 1
    engine = config.engine
    if engine.base_urls and isinstance(engine, ServedEngineSection):
        return max(local_servers(config) if engine.weight_transport == "auto" else engines, 1)
    return engines


def local_servers(config: PPOConfig) -> int:
    """Count the servers in ``base_url`` on this machine, by their addresses."""
    hosts = [urlsplit(url).hostname for url in config.engine.base_urls]
    return sum(host in ("127.0.0.1", "localhost", "::1") for host in hosts)


def _sglang_share(words: Sequence[str]) -> float | None:
    """Return the share of a GPU's memory that a server's command line requests; ``None`` without the option."""
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
    """Return the last value of an option in a command line; ``None`` without the option."""
    value = None
    for at, word in enumerate(words):
        name, equals, rest = word.partition("=")
        if name in names:
            value = rest if equals else "".join(words[at + 1 : at + 2])
    return value


def _adapter_parameters(model: ModelSection, shape: ModelShape) -> int:
    """Count the parameters of a model's adapters; loading the model reports modules that match no layer."""
    every = isinstance(model.target_modules, str)
    targets = {name for name, _ in shape.linear} if every else set(model.target_modules)
    return model.lora_rank * sum(size for name, size in shape.linear if name in targets - set(model.exclude_modules))
