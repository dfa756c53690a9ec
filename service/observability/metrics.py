"""The Prometheus series of one process, under vLLM's names with our prefix where it has one; the unit ends the name.

Source: https://docs.vllm.ai/en/latest/usage/metrics.html (names), https://prometheus.io/docs/practices/naming/
"""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from service.observability.buckets import CHOICES, FIRST_TOKEN_S, REQUEST_S, STEP_TOKENS, TOKEN_S, TOKENS
from service.observability.exposition import OWN_PREFIX, BothNames

CONTENT_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """All series of one service instance, in a registry of their own so that tests do not share counts."""

    def __init__(self, *, has_vllm_names: bool = False) -> None:
        """Create the series, all of them 0.

        Args:
            has_vllm_names: whether those that vLLM has too are shown under its names as well (METRICS_COMPAT).
        """
        self.registry = CollectorRegistry()
        self.shown = BothNames(self.registry) if has_vllm_names else self.registry
        ProcessCollector(registry=self.registry)
        self._add_load()
        self._add_tokens()
        self._add_requests()
        self._add_times()
        self._add_start()

    def exposition(self) -> bytes:
        """Return all series in Prometheus's text format."""
        return generate_latest(self.shown)  # pyright: ignore[reportArgumentType]  it only collects

    def _add_load(self) -> None:
        self.num_requests_running = self._gauge("num_requests_running", "Sequences that hold a slot.")
        self.num_requests_waiting = self._gauge("num_requests_waiting", "Requests that wait for a slot or for pages.")
        self.num_requests_waiting_by_reason = self._gauge(
            "num_requests_waiting_by_reason", "The same, by what the first of them lacks: slots or pages.", "reason"
        )
        self.kv_cache_usage_perc = self._gauge("kv_cache_usage_perc", "Share of KV pages in use, 0 to 1.")
        self.cache_config_info = self._gauge(
            "cache_config_info", "1; the labels say tokens of a KV page and pages.", "block_size", "num_gpu_blocks"
        )
        self.num_preemptions = self._counter("num_preemptions", "Sequences that lost their pages and were recomputed.")
        self.engine_steps = self._counter("engine_steps", "Device steps by kind.", "kind")
        self.iteration_tokens_total = self._histogram("iteration_tokens_total", "Tokens of a device step.", STEP_TOKENS)

    def _add_tokens(self) -> None:
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens that were prefilled.")
        self.generation_tokens = self._counter("generation_tokens", "Tokens that were generated.")
        self.prefix_cache_queries = self._counter(
            "prefix_cache_queries", "Prompt tokens looked up in the prefix cache."
        )
        self.prefix_cache_hits = self._counter("prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        self.embedding_cache_hits = self._counter("embedding_cache_hits", "Texts whose vectors were cached.")
        self.embedding_cache_misses = self._counter("embedding_cache_misses", "Texts whose vectors were not cached.")

    def _add_requests(self) -> None:
        self.request_success = self._counter("request_success", "Finished requests.", "finished_reason")
        self.http_responses = self._counter("http_responses", "Answers by route and status.", "route", "status")
        self.request_refusals = self._counter("request_refusals", "Answers that are errors, by their code.", "reason")
        self.request_prompt_tokens = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", TOKENS)
        self.request_generation_tokens = self._histogram(
            "request_generation_tokens", "Generated tokens of a request.", TOKENS
        )
        self.request_params_max_tokens = self._histogram(
            "request_params_max_tokens", "The limit of a request's generated tokens.", TOKENS
        )
        self.request_params_n = self._histogram("request_params_n", "Choices of a client's request.", CHOICES)
        self.batches_running = self._gauge("batches_running", "Batches that this process works on.")
        self.batch_lines = self._counter("batch_lines", "Lines of ended batches: completed, failed.", "outcome")
        self.batches_ended = self._counter("batches_ended", "Batches that have ended, by their status.", "status")

    def _add_times(self) -> None:
        self.time_to_first_token_seconds = self._histogram(
            "time_to_first_token_seconds", "Submit to first token.", FIRST_TOKEN_S
        )
        self.inter_token_latency_seconds = self._histogram(
            "inter_token_latency_seconds", "Token to next token.", TOKEN_S
        )
        self.request_time_per_output_token_seconds = self._histogram(
            "request_time_per_output_token_seconds", "The mean of that over a request.", TOKEN_S
        )
        self.request_queue_time_seconds = self._histogram(
            "request_queue_time_seconds", "Submit to first device step.", FIRST_TOKEN_S
        )
        self.request_prefill_time_seconds = self._histogram(
            "request_prefill_time_seconds", "First device step to first token.", FIRST_TOKEN_S
        )
        self.request_decode_time_seconds = self._histogram(
            "request_decode_time_seconds", "First token to last token.", REQUEST_S
        )
        self.request_inference_time_seconds = self._histogram(
            "request_inference_time_seconds", "First device step to last token.", REQUEST_S
        )
        self.e2e_request_latency_seconds = self._histogram(
            "e2e_request_latency_seconds", "Submit to last token.", REQUEST_S
        )

    def _add_start(self) -> None:
        self.xla_compiles = self._counter("xla_compiles", "XLA compilations in this process.")
        self.xla_compiles_after_ready = self._counter("xla_compiles_after_ready", "The same, after ready: must stay 0.")
        self.bundle_load = self._counter(
            "bundle_load", "Bundle lookups: hit, miss, corrupt, stale, unsigned.", "outcome"
        )
        self.startup_phase_seconds = self._gauge("startup_phase_seconds", "Duration of a phase of the start.", "phase")

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"{OWN_PREFIX}{name}", text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{OWN_PREFIX}{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"{OWN_PREFIX}{name}", text, buckets=buckets, registry=self.registry)
