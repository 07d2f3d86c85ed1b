"""vLLM's counters, summed up."""

from __future__ import annotations

from typing import Any

from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, SchedulerStats


class Statistics(StatLoggerBase):
    """Counters and gauges of the engine since its start; vLLM calls ``record`` after each step."""

    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
        self.counters = {"generated_tokens": 0, "steps": 0, "preemptions": 0}
        self.gauges = {"waiting": 0.0, "kv_use": 0.0}

    def record(
        self, scheduler_stats: SchedulerStats | None, iteration_stats: IterationStats | None, *args: Any, **kwargs: Any
    ) -> None:
        """Add a step."""
        if scheduler_stats is not None:
            waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
            self.gauges = {"waiting": float(waiting), "kv_use": scheduler_stats.kv_cache_usage}
        if iteration_stats is not None:
            self.counters["generated_tokens"] += iteration_stats.num_generation_tokens
            self.counters["preemptions"] += iteration_stats.num_preempted_reqs
            self.counters["steps"] += 1

    def log_engine_initialized(self) -> None:
        """Nothing to say."""
