"""Whether the memory that a run is estimated to need is there. Pure.

What is certain (:data:`trainers.cluster.memory.CERTAIN`) must fit. The estimate as a whole, of which activations and
idle KV slots are the uncertain part, may be a fifth above what there is; beyond, the run is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .in_flight import slots
from .machine import Machine
from .memory import CERTAIN

if TYPE_CHECKING:
    from trainers.config import PPOConfig

#: The error that the estimate is allowed.
MARGIN = 1.2
_GIB = 2**30
_LISTED = 3

Rows = Sequence[tuple[str, str, int]]


def shortages(rows: Rows, config: PPOConfig, device: str, ranks: int, machine: Machine) -> Iterator[str]:
    """What does not fit, in words: for each place its needs, the largest of them, and the keys that lower these.

    Args:
        rows: ``(who, what, bytes)``, on one GPU or in one process.
        config: Of the run.
        device: ``cuda`` or ``cpu``.
        ranks: Of the learner, on this machine.
        machine: What it has; nothing is said where that is not known.
    """
    for place, there, needs in _places(rows, config, device, ranks, machine):
        if there is None:
            continue
        certain = sum(size for who, what, size in needs if (who, what) in CERTAIN)
        most = sum(size for _, _, size in needs)
        if certain > there or most > MARGIN * there:
            least = f"at least {certain / _GIB:.1f} GiB" if certain > there else f"about {most / _GIB:.1f} GiB"
            yield (
                f"{' and '.join(dict.fromkeys(who for who, _, _ in needs))} need {least} {place} "
                f"{there / _GIB:.1f}{_largest(needs, config, device)}"
            )


def tight(rows: Rows, config: PPOConfig, device: str, ranks: int, machine: Machine) -> Iterator[str]:
    """A note where the estimate fits, but by less than its error."""
    for place, there, needs in _places(rows, config, device, ranks, machine):
        most = sum(size for _, _, size in needs)
        if there is not None and most > there / MARGIN:
            yield f"memory may run short: {most / _GIB:.1f} GiB are estimated {place} {there / _GIB:.1f}"


def _places(
    rows: Rows, config: PPOConfig, device: str, ranks: int, machine: Machine
) -> Iterator[tuple[str, int | None, Rows]]:
    """Each place whose memory is shared: in words, the bytes that it has, and all that is there."""
    local = config.cluster.nnodes == 1 and config.ray_init.address is None  # or Ray may have other machines
    if device == "cpu":
        if local:
            counts = {"learner": ranks, "engine": config.engine.replicas}
            once = ("weights as loaded", "weights on their way")
            whole = [(who, what, size * (1 if what in once else counts[who])) for who, what, size in rows]
            yield "of memory, and what this machine has available is", machine.ram_bytes, whole
        return
    there = machine.gpu_free if local and machine.gpu_free is not None else machine.gpu_bytes
    said = "on each GPU, whose free memory is" if local and machine.gpu_free is not None else "on each GPU, which has"
    together = config.cluster.colocate and not (config.engine.name == "vllm" and config.engine.vllm.sleep_mode)
    if together:
        yield said, there, rows
        return
    for name in dict.fromkeys(who for who, _, _ in rows):
        yield said, there, [row for row in rows if row[0] == name]


def _largest(needs: Rows, config: PPOConfig, device: str) -> str:
    """The largest needs, and what lowers each."""
    ranked = sorted(needs, key=lambda row: -row[2])[:_LISTED]
    parts = [f"{who}: {what} {size / _GIB:.1f} GiB ({_less(who, what, config, device)})" for who, what, size in ranked]
    return f". The largest parts: {'; '.join(parts)}"


def _less(who: str, what: str, config: PPOConfig, device: str) -> str:
    """The keys that lower a need."""
    engine, actor = config.engine, config.actor
    if what == "keys and values":
        return (
            f"less with a smaller engine.kv_cache_gib (now {engine.kv_cache_gib or 'null'}), engine.max_slots (now "
            f"{slots(config)}), or engine.max_context (now {engine.max_context})"
        )
    if what == "weights, keys and values" and engine.name == "sglang":
        return "less with a smaller --mem-fraction-static in engine.sglang.server_args"
    if what == "weights, keys and values":
        return f"less with a smaller engine.vllm.gpu_memory_utilization (now {engine.vllm.gpu_memory_utilization:g})"
    if what == "activations":
        tokens = f"actor.max_tokens_per_micro_batch (now {actor.max_tokens_per_micro_batch})"
        more = "" if config.model.enable_gradient_checkpointing else ", or model.enable_gradient_checkpointing=true"
        return f"less with a smaller {tokens}{more}"
    if who == "engine" or what in ("weights as loaded", "weights on their way"):
        half = "model.dtype=bfloat16, or " if config.model.dtype == "float32" else ""
        return f"less with {half}a smaller model.path"
    fewer = [] if config.model.lora_rank else ["model.lora_rank=16, which trains adapters alone"]
    if device == "cuda":
        fewer += [f"more cluster.learner_ranks (now {config.cluster.learner_ranks})", "trainer.offload=true"]
        fewer += ["cluster.colocate=false, which gives engines GPUs of their own"] if config.cluster.colocate else []
    return f"less with {', or '.join([*fewer, 'a smaller model.path'])}"
