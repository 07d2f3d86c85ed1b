"""Memory estimates of a run, compared with the memory available: in bytes per GPU (or per process on CPUs). Pure.

What is certain (:data:`CERTAIN`) must fit. The whole estimate, of which activations and idle KV slots are the uncertain
part, may be a fifth above what there is. Conventions:

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
  Replicas that share a place add up;
* weights reach a server on the learner's devices in two buckets, each of ``bucket_mib`` or the embeddings;
* a user or judge whose model is a folder has an embedded engine of its own, in the driver.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING

from trainers.config.engine import ServedEngineSection, SGLangEngineSection, VLLMEngineSection
from trainers.config.sizes import slots
from trainers.engines.base import default_kv_bytes
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
_ON_THEIR_WAY, _BUCKETS = "weights on their way", "buckets of weights"
_LIBRARIES = 400 * 2**20
SERVED = "users and judges"  #: whose models are folders
#: The rows of :func:`estimate` that no chunking and no luck makes smaller, as ``(who, what)``.
CERTAIN = frozenset(
    [
        *(
            ("learner", what)
            for what in ("parameters", "gradients", "optimizer", "weights as loaded", "rounded parameters")
        ),
        *(("engine", what) for what in ("weights", "weights, keys and values")),
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
    served: Sequence[tuple[int, int]] = (),
) -> Iterator[tuple[str, str, int]]:
    """Yield rows ``(who, what, bytes)``; ``shards`` ranks share the learner's parameters, beside tensor parallelism.

    ``engine_gpus`` is of one engine; ``gpu_bytes`` the memory of a GPU, ``gpu_free`` what is free of it, where they are
    known; ``served`` are the bytes of
    each user's and judge's weights, and of its keys and values, where its model is a folder.
    """
    learner, rows = list(_of_learner(config, shape, device, ranks, shards)), list[tuple[str, str, int]]()
    if not config.engine.base_urls:  # those servers have their memory already
        rows += _of_engine(config, shape, device, engine_gpus, gpu_bytes)
    if served:
        rows.append((SERVED, "weights", sum(weights for weights, _ in served)))
        rows.append((SERVED, "keys and values", sum(cache for _, cache in served)))
    yield from learner
    free = gpu_bytes if gpu_free is None else gpu_free
    yield "learner", "activations", _activations(config, shape, device, ranks, [*learner, *rows], free)
    yield from rows


def _number_size(config: PPOConfig) -> int:
    return 2 if config.model.dtype == "bfloat16" else 4


def _of_learner(
    config: PPOConfig, shape: ModelShape, device: str, ranks: int, shards: int
) -> Iterator[tuple[str, str, int]]:
    computation = Computation.of(config.model, config.trainer, device)
    held = ((shape.parameters - shape.outside) // computation.tensor + shape.outside) // shards
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
            yield "learner", _ON_THEIR_WAY, size * shape.parameters
        yield "learner", "Python and its libraries", _LIBRARIES
    if buckets := _buckets(config, shape, device):
        yield "learner", _BUCKETS, buckets
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
        engine_sleeps = config.engine.sleeps or not config.cluster.colocate
        there = sum(size for who, _, size in rows if who != "engine" or not engine_sleeps)
        free = None if gpu_free is None else gpu_free - there
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
    if isinstance(engine, VLLMEngineSection) and device == "cuda":
        if gpu_bytes is not None:
            reserved = int(engine.vllm.gpu_memory_utilization * gpu_bytes)
            if engine.kv_cache_bytes is not None:
                reserved = max(reserved, size * shape.parameters // gpus + engine.kv_cache_bytes)
            yield "engine", "weights, keys and values", reserved
        return
    if isinstance(engine, SGLangEngineSection) and device == "cuda" and gpu_bytes is not None:
        share = _sglang_share(engine.sglang.server_args)
        if share is not None:
            yield "engine", "weights, keys and values", int(share * gpu_bytes)
            return
    yield "engine", "weights", size * shape.parameters // gpus
    context = engine.max_context * max(shape.layers, 1) * 2 * shape.kv_width * size // gpus
    room = engine.kv_cache_bytes or default_kv_bytes(gpu_bytes if device == "cuda" else None)
    needed = slots(config) * context
    if engine.name == "vllm":  # which takes it at once
        needed = room
    elif engine.name == "torch":
        needed = min(needed, max(room, context))
    yield "engine", "keys and values", needed


def _buckets(config: PPOConfig, shape: ModelShape, device: str) -> int:
    """Return the bytes of the two buckets that a server on the learner's devices maps: those of ``ipc``."""
    engine = config.engine
    if not isinstance(engine, ServedEngineSection) or engine.weight_transport not in ("auto", "ipc"):
        return 0
    if engine.base_urls or not (device == "cpu" or config.cluster.colocate):
        return 0
    size = _number_size(config)
    largest = size * shape.vocab * shape.hidden  # the embeddings: a parameter travels whole
    return 2 * min(max(engine.server.bucket_mib * 2**20, largest), size * shape.parameters)


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


# ------------------ comparison with the memory available

#: Tolerance of the estimate.
MARGIN = 1.2
_LISTED = 3  # parts that are named

Rows = Sequence[tuple[str, str, int]]


def shortages(rows: Rows, config: PPOConfig, device: str, ranks: int, machine: Machine) -> Iterator[str]:
    """Yield a message for each place whose needs do not fit, with the largest needs and the keys that lower them.

    ``rows`` are ``(who, what, bytes)``, on one GPU or in one process; ``ranks`` are the learner's on this ``machine``.
    """
    for place, capacity, needs in _places(rows, config, device, ranks, machine):
        if capacity is None:
            continue
        certain = sum(size for who, what, size in needs if (who, what) in CERTAIN)
        most = sum(size for _, _, size in needs)
        if certain > capacity or most > MARGIN * capacity:
            least = f"at least {certain / _GIB:.1f} GiB" if certain > capacity else f"about {most / _GIB:.1f} GiB"
            yield (
                f"{' and '.join(dict.fromkeys(who for who, _, _ in needs))} need {least} {place} "
                f"{capacity / _GIB:.1f}{_largest(needs, config, device, machine)}"
            )


def tight(rows: Rows, config: PPOConfig, device: str, ranks: int, machine: Machine) -> Iterator[str]:
    """Yield a note for each place where the estimate fits by less than its tolerance."""
    for place, capacity, needs in _places(rows, config, device, ranks, machine):
        most = sum(size for _, _, size in needs)
        if capacity is not None and most > capacity / MARGIN:
            yield f"memory may run short: {most / _GIB:.1f} GiB are estimated {place} {capacity / _GIB:.1f}"


def _places(
    rows: Rows, config: PPOConfig, device: str, ranks: int, machine: Machine
) -> Iterator[tuple[str, int | None, Rows]]:
    """Yield each place whose memory is shared: a phrase, its capacity in bytes, and the rows that need it."""
    local = config.cluster.nnodes == 1 and config.ray_init.address is None  # or Ray may have other machines
    engines = _engines_at_once(config, device, machine)
    pairs = 1 if config.cluster.backend == "ray" else engines  # a rank has one for all servers, this process one each
    if device == "cpu":
        if local:
            counts = {"learner": ranks, "engine": engines, SERVED: 1}
            once = ("weights as loaded", _ON_THEIR_WAY)
            times = dict.fromkeys(once, 1) | {_BUCKETS: pairs}
            whole = [(who, what, size * times.get(what, counts[who])) for who, what, size in rows]
            yield "of memory, and what this machine has available is", machine.ram_bytes, whole
        return
    capacity = machine.gpu_free if local and machine.gpu_free is not None else machine.gpu_bytes
    phrase = "on each GPU, whose free memory is" if local and machine.gpu_free is not None else "on each GPU, which has"
    times = {_BUCKETS: pairs}
    rows = [(who, what, size * times.get(what, engines if who == "engine" else 1)) for who, what, size in rows]
    together = config.cluster.colocate and not config.engine.sleeps
    if together:
        yield phrase, capacity, rows
        return
    for name in dict.fromkeys(who for who, _, _ in rows if who != SERVED):
        also = SERVED if name == "learner" or config.cluster.colocate else name  # the driver's GPU has these as well
        yield phrase, capacity, [row for row in rows if row[0] in (name, also)]


def _engines_at_once(config: PPOConfig, device: str, machine: Machine) -> int:
    """Return the replicas at the fullest place: in this machine's memory, or on one GPU."""
    engine, cluster = config.engine, config.cluster
    if device == "cpu":
        return engine.engines
    if cluster.backend != "local" or not cluster.colocate:  # each has its own
        return 1
    if engine.name == "torch":  # where the learner is
        return engine.engines
    return ceil(engine.engines * engine.gpus / max(machine.gpus, 1))  # servers take GPUs in turn


def _largest(needs: Rows, config: PPOConfig, device: str, machine: Machine) -> str:
    several = _engines_at_once(config, device, machine) > 1
    fewer = {"engine": f", or fewer engine.replicas (now {config.engine.engines})"} if several else {}
    parts = [
        f"{who}: {what} {size / _GIB:.1f} GiB ({_less(who, what, config, device)}{fewer.get(who, '')})"
        for who, what, size in sorted(needs, key=lambda row: -row[2])[:_LISTED]
    ]
    return f". The largest parts: {'; '.join(parts)}"


def _less(who: str, what: str, config: PPOConfig, device: str) -> str:
    engine, actor = config.engine, config.actor
    if who == SERVED:
        return (
            "less with smaller models of users and judges (user and judge in kwargs and val_kwargs of env or "
            "env.mixture.NAME, and env.assistant), or where they are served elsewhere (base_url)"
        )
    gib = None if engine.kv_cache_bytes is None else engine.kv_cache_bytes / _GIB
    if what == "keys and values":
        return (
            f"less with a smaller engine.kv_cache_gib (now {gib or 'null'}), engine.max_slots (now "
            f"{slots(config)}), or engine.max_context (now {engine.max_context})"
        )
    if what == "weights, keys and values" and engine.name == "sglang":
        return "less with a smaller --mem-fraction-static in engine.sglang.server_args"
    if what == "weights, keys and values":
        assert isinstance(engine, VLLMEngineSection)
        also = "" if gib is None else f" and engine.kv_cache_gib (now {gib:g})"
        share = engine.vllm.gpu_memory_utilization
        return f"less with a smaller engine.vllm.gpu_memory_utilization (now {share:g}){also}"
    if what == "activations":
        tokens = f"actor.max_tokens_per_micro_batch (now {actor.max_tokens_per_micro_batch or 'null'})"
        also = "" if config.model.enable_gradient_checkpointing else ", or model.enable_gradient_checkpointing=true"
        return f"less with a smaller {tokens}{also}"
    if what == _BUCKETS:
        assert isinstance(engine, ServedEngineSection)
        return f"less with a smaller engine.{engine.name}.bucket_mib (now {engine.server.bucket_mib})"
    if who == "engine" or what in ("weights as loaded", _ON_THEIR_WAY, "rounded parameters"):
        half = "model.dtype=bfloat16, or " if config.model.dtype == "float32" else ""
        return f"less with {half}a smaller model.path"
    fewer = [] if config.model.lora_rank else ["model.lora_rank=16, which trains adapters alone"]
    if device == "cuda":
        fewer += [f"more cluster.learner_ranks (now {config.cluster.learner_ranks})", "trainer.offload=true"]
        fewer += ["cluster.colocate=false, which gives engines GPUs of their own"] if config.cluster.colocate else []
    return f"less with {', or '.join([*fewer, 'a smaller model.path'])}"
