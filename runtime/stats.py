"""Counts of a running engine, the stats line, and the metrics made from them."""

from __future__ import annotations

import logging
from collections import Counter as Tally
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace

from deepinfer_gen.runtime.metrics import PREFIX, SECONDS, TOKENS, Counter, Gauge, Metric, Observations
from deepinfer_gen.runtime.outputs import RequestStateStats
from deepinfer_gen.runtime.scheduler_core import Action, StepView

logger = logging.getLogger(__name__)

LOG_INTERVAL = 10.0


@dataclass(frozen=True, slots=True)
class Load:
    """How full the engine is: requests by place, and the share of cache blocks and state slots in use (0 to 1)."""

    running: int
    waiting: int
    cache_usage: float
    slot_usage: float


@dataclass(slots=True)
class StepCounts:
    """What happened up to now, or over some interval."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    preemptions: int = 0
    prefill_steps: int = 0
    decode_steps: int = 0
    decode_tokens: int = 0
    padded_tokens: int = 0
    graphs: Tally[int] = field(default_factory=Tally)

    def add_step(self, step: StepView) -> None:
        """Count a scheduled step."""
        self.preemptions += len(step.preempted)
        if step.kind == Action.PREFILL:
            self.prefill_steps += 1
            self.prompt_tokens += step.total_q
        else:
            graph = step.graph
            self.decode_steps += 1
            self.decode_tokens += step.total_q
            self.padded_tokens += graph
            self.graphs[graph] += 1

    def copy(self) -> StepCounts:
        """The counts of this moment."""
        return replace(self, graphs=self.graphs.copy())

    def since(self, earlier: StepCounts) -> StepCounts:
        """What happened since ``earlier``, a copy of these counts."""
        return StepCounts(*(getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self)))

    @property
    def padding_waste(self) -> float:
        """Share of the decode tokens that was padding."""
        return 1.0 - self.decode_tokens / self.padded_tokens if self.padded_tokens else 0.0


class EngineStats:
    """Collects counts and, when ``log`` is set, writes vLLM's stats line every ten seconds of work."""

    def __init__(self, engine: str, clock: Callable[[], float], *, log: bool) -> None:
        self._labels = {"engine": engine}
        self._clock = clock
        self._log = log
        self._logged_at = clock()
        self.total = StepCounts()
        self._logged = StepCounts()
        self._finished: Tally[str] = Tally()
        self._seconds = {
            name: Observations(SECONDS)
            for name in (
                "time_to_first_token_seconds",
                "inter_token_latency_seconds",
                "request_time_per_output_token_seconds",
                "e2e_request_latency_seconds",
                "request_queue_time_seconds",
                "request_prefill_time_seconds",
                "request_decode_time_seconds",
            )
        }
        self._iteration_tokens = Observations(TOKENS)

    def record_step(self, step: StepView) -> None:
        """Count a scheduled step before it runs."""
        self.total.add_step(step)
        self._iteration_tokens.add(float(step.total_q))

    def record_tokens(self, count: int) -> None:
        """Count tokens that became output."""
        self.total.generation_tokens += count

    def record_gap(self, seconds: float, tokens: int) -> None:
        """Count the time a request waited for ``tokens`` tokens that came together."""
        self._seconds["inter_token_latency_seconds"].add(seconds / tokens, tokens)

    def record_finished(self, metrics: RequestStateStats, finish_reason: str, now: float) -> None:
        """Count a request that ended."""
        self._finished[finish_reason] += 1
        self._seconds["e2e_request_latency_seconds"].add(now - metrics.queued_ts)
        if not metrics.num_generation_tokens:
            return
        decode = metrics.last_token_ts - metrics.first_token_ts
        self._seconds["time_to_first_token_seconds"].add(metrics.first_token_latency)
        self._seconds["request_queue_time_seconds"].add(metrics.scheduled_ts - metrics.queued_ts)
        self._seconds["request_prefill_time_seconds"].add(metrics.first_token_ts - metrics.scheduled_ts)
        self._seconds["request_decode_time_seconds"].add(decode)
        if metrics.num_generation_tokens > 1:
            per_token = decode / (metrics.num_generation_tokens - 1)
            self._seconds["request_time_per_output_token_seconds"].add(per_token)

    def maybe_log(self, load: Callable[[], Load]) -> None:
        """Write the stats line if logging is on and its interval has passed."""
        now = self._clock()
        if not self._log or now - self._logged_at < LOG_INTERVAL:
            return
        logger.info("%s", stats_line(self.total.since(self._logged), now - self._logged_at, load()))
        self._logged = self.total.copy()
        self._logged_at = now

    def metrics(self, load: Load) -> list[Metric]:
        """All metrics under vLLM's names with our prefix."""
        labels, total = self._labels, self.total
        gauges: Mapping[str, float] = {
            "num_requests_running": load.running,
            "num_requests_waiting": load.waiting,
            "kv_cache_usage_perc": load.cache_usage,
            "state_slot_usage_perc": load.slot_usage,
            "padding_waste_perc": total.padding_waste,
        }
        counters: Mapping[str, int] = {
            "num_preemptions": total.preemptions,
            "prompt_tokens": total.prompt_tokens,
            "generation_tokens": total.generation_tokens,
            "prefill_steps": total.prefill_steps,
            "decode_steps": total.decode_steps,
        }
        return [
            *(Gauge(PREFIX + name, labels, value) for name, value in gauges.items()),
            *(Counter(PREFIX + name, labels, value) for name, value in counters.items()),
            *(
                Counter(PREFIX + "request_success", {**labels, "finished_reason": reason}, count)
                for reason, count in sorted(self._finished.items())
            ),
            *(
                Counter(PREFIX + "decode_graph_steps", {**labels, "graph": str(size)}, count)
                for size, count in sorted(total.graphs.items())
            ),
            *(seen.snapshot(PREFIX + name, labels) for name, seen in self._seconds.items()),
            self._iteration_tokens.snapshot(PREFIX + "iteration_tokens_total", labels),
        ]


def stats_line(counts: StepCounts, seconds: float, load: Load) -> str:
    """vLLM's stats line, then what is ours: slots, step types, graph histogram, padding."""
    graphs = ", ".join(f"{size}: {count}" for size, count in sorted(counts.graphs.items()))
    return (
        f"Avg prompt throughput: {counts.prompt_tokens / seconds:.1f} tokens/s, "
        f"Avg generation throughput: {counts.generation_tokens / seconds:.1f} tokens/s, "
        f"Running: {load.running} reqs, Waiting: {load.waiting} reqs, Preemptions: {counts.preemptions}, "
        f"KV cache usage: {load.cache_usage:.1%}, Prefix cache hit rate: 0.0%, "
        f"State slots used: {load.slot_usage:.1%}, Steps: P {counts.prefill_steps} / D {counts.decode_steps}, "
        f"Graphs: {{{graphs}}}, Padding waste: {counts.padding_waste:.1%}"
    )
