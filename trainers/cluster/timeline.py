"""The memory of a GPU over an iteration: which parts are there at each moment, and whether their sum fits. Pure.

The parts are those of :mod:`.memory`. What is certain (:data:`~trainers.cluster.memory.CERTAIN`) must fit at every
moment. The whole estimate, of which activations and idle KV slots are the uncertain part, may be a fifth above what
there is. The moments are those of :mod:`trainers.ppo`:

* while rolling out, the learner keeps its parameters and the optimizer's state, or nothing with ``trainer.offload``;
* while learning, there are also gradients, gathered layers and activations. An engine that sleeps
  (:func:`trainers.config.sizes.sleep_level`) keeps its CUDA context and graphs, at level 1 also its weights;
* while updating, it has taken memory for its weights again, and the weights are on their way: one gathered parameter
  and the buckets. Where engines sleep, the buckets are freed before the engine takes memory for keys and values;
* with ``rollout.staleness`` the learner learns during all of this, so everything counts at the same time. On CPUs it
  does too, because freed memory returns late.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING

from trainers.cluster.memory import (
    BUCKET,
    BUCKETS,
    CERTAIN,
    GATHERED,
    MOMENTS,
    ON_THEIR_WAY,
    RESERVED,
    SERVED,
    STEPS,
    Machine,
    MomentName,
    Rows,
    is_there,
    pairs_of_buckets,
)
from trainers.config.engine import ServedEngineSection, TorchEngineSection, VLLMEngineSection
from trainers.config.sizes import sleep_level, slots

if TYPE_CHECKING:
    from trainers.config import PPOConfig

_GIB = 2**30
#: Tolerance of the estimate.
MARGIN = 1.2
_LISTED = 3  # parts that are named
MACHINE = "machine"  #: the kind of main memory
_LABEL, _COLUMN = 42, 13  # widths of a table's columns


@dataclass(frozen=True)
class Moment:
    """The parts that are in memory at a moment of an iteration."""

    name: MomentName
    rows: Rows  #: ``(who, what, bytes)``

    @property
    def total(self) -> int:
        return sum(size for _, _, size in self.rows)

    @property
    def certain(self) -> int:
        return sum(size for who, what, size in self.rows if (who, what) in CERTAIN)


@dataclass(frozen=True)
class Timeline:
    """The moments of a kind of place: of each GPU of a kind, or of this machine's main memory."""

    kind: str  #: of the GPU, by who uses it
    phrase: str  #: before the capacity
    capacity: int | None  #: bytes, where they are known
    rows: Rows  #: of all moments
    moments: tuple[Moment, ...]

    @property
    def peak(self) -> Moment:
        return max(self.moments, key=lambda moment: moment.total)


def timelines(
    rows: Rows, config: PPOConfig, device: str, ranks: int, machine: Machine, level: int | None = None
) -> tuple[Timeline, ...]:
    """Return a timeline for each kind of place: one where engines share the learner's GPUs, else one for each.

    ``rows`` are of one GPU or process (:func:`trainers.cluster.memory.estimate`); ``ranks`` are the learner's on this
    ``machine``; ``level`` of the engine's sleep is by default the run's own.
    """
    level = sleep_level(config, device) if level is None else level
    return tuple(
        Timeline(kind, phrase, capacity, tuple(needs), tuple(_moments(needs, config, device, level)))
        for kind, phrase, capacity, needs in _places(rows, config, device, ranks, machine)
    )


def shortages(lines: Sequence[Timeline], config: PPOConfig, device: str, machine: Machine) -> Iterator[str]:
    """Yield a message for each place with a moment that does not fit: the fullest, and the keys that lower its needs.

    On GPUs, the place's timeline follows.
    """
    for line in lines:
        if line.capacity is None:
            continue
        moment = max(line.moments, key=lambda moment: (moment.certain > (line.capacity or 0), moment.total))
        certain, most = moment.certain, moment.total
        if certain > line.capacity or most > MARGIN * line.capacity:
            least = f"at least {certain / _GIB:.1f} GiB" if certain > line.capacity else f"about {most / _GIB:.1f} GiB"
            who = list(dict.fromkeys(who for who, _, _ in moment.rows))
            verb = "need" if len(who) > 1 or who == [SERVED] else "needs"
            yield (
                f"{' and '.join(who)} {verb} {least} {_when(moment)}{line.phrase} "
                f"{line.capacity / _GIB:.1f}{_largest(moment.rows, config, device, machine)}"
                + "".join(f"\n{text}" for text in table(line))
            )


def tight(lines: Sequence[Timeline]) -> Iterator[str]:
    """Yield a note for each place where the estimate fits by less than its tolerance."""
    for line in lines:
        most = line.peak.total
        if line.capacity is not None and most > line.capacity / MARGIN:
            yield (
                f"memory may run short: {most / _GIB:.1f} GiB are estimated {_when(line.peak)}{line.phrase} "
                f"{line.capacity / _GIB:.1f}"
            )


def table(line: Timeline) -> list[str]:
    """Return the lines of a table: a row for each part, a column for each moment; none for main memory."""
    if line.kind == MACHINE:
        return []
    peak, parts = line.peak, list(dict.fromkeys((who, what) for who, what, _ in line.rows))
    unit, size_of = ("GiB", _GIB) if peak.total >= _GIB else ("MiB", 2**20)

    def row(label: str, cells: Sequence[str]) -> str:
        return f"  {label:<{_LABEL}}" + "".join(f"{cell:>{_COLUMN}}" for cell in cells)

    def cell(size: int) -> str:
        return f"{size / size_of:.1f}" if size else "-"

    free = "free" in line.phrase
    has = "" if line.capacity is None else f"; {'free are' if free else 'it has'} {line.capacity / size_of:.1f}"
    lines = [f"memory of each GPU of {line.kind} in an iteration, estimated, in {unit}{has}:"]
    lines.append(row("", [moment.name for moment in line.moments]))
    for who, what in parts:
        sizes = [sum(size for *part, size in moment.rows if part == [who, what]) for moment in line.moments]
        lines.append(row(f"{who}: {what}", [cell(size) for size in sizes]))
    lines.append(row("together", [cell(moment.total) for moment in line.moments]))
    lines.append(row("", ["peak" if moment is peak else "" for moment in line.moments]).rstrip())
    return lines


def _when(moment: Moment) -> str:
    return "" if moment.name == "at once" else f"while {moment.name} "


def _moments(rows: Rows, config: PPOConfig, device: str, level: int) -> Iterator[Moment]:
    if device == "cpu" or config.rollout.staleness:
        yield Moment("at once", tuple(rows))
        return
    names = MOMENTS if level and isinstance(config.engine, ServedEngineSection) else MOMENTS[:-1]
    for name in names:
        yield Moment(name, tuple(row for row in rows if is_there(row[0], row[1], name, level)))


def _places(
    rows: Rows, config: PPOConfig, device: str, ranks: int, machine: Machine
) -> Iterator[tuple[str, str, int | None, Rows]]:
    """Yield each place whose memory is shared: its kind, a phrase, its capacity in bytes, and its rows."""
    local = config.cluster.nnodes == 1 and config.ray_init.address is None  # or Ray may have other machines
    engines = _engines_at_once(config, device, machine)
    counts = {"learner": ranks if device == "cpu" else 1, "engine": engines, SERVED: 1}
    once = {("learner", what): 1 for what in ("weights as loaded", ON_THEIR_WAY)} | {
        ("learner", BUCKETS): pairs_of_buckets(config, engines)
    }
    rows = [(who, what, size * once.get((who, what), counts[who])) for who, what, size in rows]
    if device == "cpu":
        if local:
            yield MACHINE, "of memory, and what this machine has available is", machine.ram_bytes, rows
        return
    capacity = machine.gpu_free if local and machine.gpu_free is not None else machine.gpu_bytes
    phrase = "on each GPU, whose free memory is" if local and machine.gpu_free is not None else "on each GPU, which has"
    if config.cluster.colocate:
        names = [name for name in dict.fromkeys(who for who, _, _ in rows) if name != SERVED]
        yield " and ".join(names), phrase, capacity, rows
        return
    for name in dict.fromkeys(who for who, _, _ in rows if who != SERVED):
        also = SERVED if name == "learner" else name  # the driver's GPU has these as well
        yield name, phrase, capacity, [row for row in rows if row[0] in (name, also)]


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
    if what == STEPS:
        graphs = isinstance(engine, TorchEngineSection) and engine.cuda_graphs
        return f"less with a smaller engine.max_slots (now {slots(config)}){', or engine.cuda_graphs=false' * graphs}"
    if what == RESERVED and engine.name == "sglang":
        return f"less with a smaller --mem-fraction-static in engine.sglang.server_args{_asleep(config, device)}"
    if what == RESERVED:
        assert isinstance(engine, VLLMEngineSection)
        also = "" if gib is None else f" and engine.kv_cache_gib (now {gib:g})"
        share = engine.vllm.gpu_memory_utilization
        return f"less with a smaller engine.vllm.gpu_memory_utilization (now {share:g}){also}{_asleep(config, device)}"
    if what == "activations":
        tokens = f"actor.max_tokens_per_micro_batch (now {actor.max_tokens_per_micro_batch or 'null'})"
        also = "" if config.model.enable_gradient_checkpointing else ", or model.enable_gradient_checkpointing=true"
        return f"less with a smaller {tokens}{also}"
    if what in (BUCKET, BUCKETS):
        assert isinstance(engine, ServedEngineSection)
        return f"less with a smaller engine.{engine.name}.bucket_mib (now {engine.server.bucket_mib})"
    if who == "engine" or what in ("weights as loaded", ON_THEIR_WAY, "rounded parameters", GATHERED):
        half = "model.dtype=bfloat16, or " if config.model.dtype == "float32" else ""
        return f"less with {half}a smaller model.path"
    fewer = [] if config.model.lora_rank else ["model.lora_rank=16, which trains adapters alone"]
    if device == "cuda":
        fewer += [f"more cluster.learner_ranks (now {config.cluster.learner_ranks})", "trainer.offload=true"]
        fewer += ["cluster.colocate=false, which gives engines GPUs of their own"] if config.cluster.colocate else []
    return f"less with {', or '.join([*fewer, 'a smaller model.path'])}"


def _asleep(config: PPOConfig, device: str) -> str:
    """Return the advice that lets a server give this back while the learner learns; nothing if it does already."""
    if sleep_level(config, device) or not config.cluster.colocate or config.rollout.staleness:
        return ""
    return f", or engine.{config.engine.name}.sleep_mode=true, which frees it while the learner learns"
