"""vLLM's own statistics, taken where it offers them: a logger that only adds up.

vLLM calls `record` after each step. Its statistics classes are not stable between versions, which is why only this module
reads them.
"""
# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase


class Gauges(StatLoggerBase):
    """Of now: `running`, `waiting`, `kv_share`. Since the start: the others, in tokens or times."""

    def __init__(self, vllm_config: Any = None, engine_index: int = 0) -> None:
        self.running = self.waiting = 0
        self.kv_share = 0.0
        self.preemptions = self.queried_tokens = self.hit_tokens = 0

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        if scheduler_stats is not None:
            self.running = scheduler_stats.num_running_reqs
            self.waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
            self.kv_share = scheduler_stats.kv_cache_usage
            prefixes = scheduler_stats.prefix_cache_stats
            self.queried_tokens += prefixes.queries
            self.hit_tokens += prefixes.hits
        if iteration_stats is not None:
            self.preemptions += iteration_stats.num_preempted_reqs

    def log_engine_initialized(self) -> None:
        pass
