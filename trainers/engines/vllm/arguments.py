"""Which of vLLM's engine arguments a run may choose, without imports: checked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# A server computes on one GPU: an update's checksums are those of one worker.
_PARALLEL = frozenset(("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"))
# Have options of their own, or are decided by the conventions of the engine protocol.
_TAKEN = frozenset(
    (
        *("model", "tokenizer", "skip_tokenizer_init", "load_format", "dtype", "quantization", "generation_config"),
        *("max_model_len", "max_num_seqs", "seed", "logprobs_mode", "max_logprobs", "enable_prefix_caching"),
        *("gpu_memory_utilization", "kv_cache_memory_bytes", "block_size", "enforce_eager", "enable_sleep_mode"),
        *("worker_extension_cls", "weight_transfer_config", "disable_log_stats"),
    )
)


def refused_arguments(args: Mapping[str, Any]) -> dict[str, str]:
    """The arguments that may not be given, each with the reason and what to do instead."""
    parallel = "a vLLM server computes on one GPU: leave it out; for several GPUs use engine.replicas, or sglang"
    reasons = dict.fromkeys(_PARALLEL, parallel)
    reasons |= dict.fromkeys(_TAKEN, "is decided by other options, or by the engine protocol: leave it out")
    return {name: reasons[name] for name in args if name in reasons}
