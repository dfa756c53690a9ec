"""The Prometheus series of one process, under vLLM's names with our prefix where it has one; the unit ends the name.

Source: https://docs.vllm.ai/en/latest/usage/metrics.html (names), https://prometheus.io/docs/practices/naming/
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

LATENCY_BUCKETS_S = (
    0.001,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    120.0,
    300.0,
)
CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """All series of one service instance, in a registry of their own so that tests do not share counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.num_requests_running = self._gauge("num_requests_running", "Sequences that hold a slot.")
        self.num_requests_waiting = self._gauge("num_requests_waiting", "Requests that wait for a slot or for pages.")
        self.kv_cache_usage_perc = self._gauge("kv_cache_usage_perc", "Share of KV pages in use, 0 to 1.")
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens that were prefilled.")
        self.generation_tokens = self._counter("generation_tokens", "Tokens that were generated.")
        self.request_success = self._counter("request_success", "Finished requests.", "finished_reason")
        self.http_responses = self._counter("http_responses", "Answers by route and status.", "route", "status")
        self.engine_steps = self._counter("engine_steps", "Device steps by kind.", "kind")
        self.embedding_cache_hits = self._counter("embedding_cache_hits", "Texts whose vectors were cached.")
        self.embedding_cache_misses = self._counter("embedding_cache_misses", "Texts whose vectors were not cached.")
        self.xla_compiles = self._counter("xla_compiles", "XLA compilations in this process.")
        self.xla_compiles_after_ready = self._counter("xla_compiles_after_ready", "The same, after ready: must stay 0.")
        self.bundle_load = self._counter("bundle_load", "Bundle lookups: hit, miss, corrupt, stale.", "outcome")
        self.time_to_first_token_seconds = self._histogram("time_to_first_token_seconds", "Submit to first token.")
        self.inter_token_latency_seconds = self._histogram("inter_token_latency_seconds", "Token to next token.")
        self.e2e_request_latency_seconds = self._histogram("e2e_request_latency_seconds", "Submit to last token.")
        self.startup_phase_seconds = self._gauge("startup_phase_seconds", "Duration of a phase of the start.", "phase")

    def exposition(self) -> bytes:
        """Return all series in Prometheus's text format."""
        return generate_latest(self.registry)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"levserve_{name}", text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"levserve_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str) -> Histogram:
        return Histogram(f"levserve_{name}", text, buckets=LATENCY_BUCKETS_S, registry=self.registry)
