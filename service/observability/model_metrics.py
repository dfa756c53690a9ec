"""The series of one model's requests and engine, and of all models of a process with the label `model_name`.

Source: https://docs.vllm.ai/en/latest/usage/metrics.html (names and label)
"""

import threading
from collections.abc import Iterable
from typing import override

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from service.observability.buckets import CHOICES, FIRST_TOKEN_S, REQUEST_S, STEP_TOKENS, TOKEN_S, TOKENS
from service.observability.model_load import NO_ADAPTERS, ModelLoad
from service.observability.series import SeriesSet

LABEL = "model_name"


class ModelMetrics(SeriesSet):
    """The series of one model, without its name; they go on counting when it is loaded again."""

    def __init__(self) -> None:
        """Create the series, all of them 0."""
        super().__init__()
        self.load = ModelLoad()
        self._add_load()
        self._add_tokens()
        self._add_requests()
        self._add_times()
        self._add_residence()

    def value(self, name: str) -> float:
        """Return the present value of a series that has no labels, by its full name; 0 if there is no such series."""
        return self.registry.get_sample_value(name) or 0.0

    def clear_state(self) -> None:
        """Forget what runs and what is full, once the model is not loaded any more."""
        self.load.clear()
        self.model_memory_bytes.set(0)
        self.cache_config_info.clear()
        self.num_requests_waiting_by_reason.clear()

    def _add_load(self) -> None:
        load = self.load
        running = self._gauge("num_requests_running", "Sequences that hold a slot.")
        running.set_function(lambda: load.num_running)
        waiting = self._gauge("num_requests_waiting", "Requests that wait for a slot or for pages.")
        waiting.set_function(lambda: load.num_waiting)
        self.num_requests_waiting_by_reason = self._gauge(
            "num_requests_waiting_by_reason", "The same, by what the first of them lacks: slots or pages.", "reason"
        )
        usage = self._gauge("kv_cache_usage_perc", "Share of KV pages in use, 0 to 1.")
        usage.set_function(lambda: load.kv_cache_usage)
        self.cache_config_info = self._gauge(
            "cache_config_info", "1; the labels say tokens of a KV page and pages.", "block_size", "num_gpu_blocks"
        )
        adapters = self._gauge("lora_requests_info", "When adapters changed last; the labels name them.", *NO_ADAPTERS)
        adapters.labels(**NO_ADAPTERS).set_function(lambda: load.updated_at)
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
        self.request_prompt_tokens = self._histogram("request_prompt_tokens", "Prompt tokens of a request.", TOKENS)
        self.request_generation_tokens = self._histogram(
            "request_generation_tokens", "Generated tokens of a request.", TOKENS
        )
        self.request_params_max_tokens = self._histogram(
            "request_params_max_tokens", "The limit of a request's generated tokens.", TOKENS
        )
        self.request_params_n = self._histogram("request_params_n", "Choices of a client's request.", CHOICES)

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

    def _add_residence(self) -> None:
        self.model_loads = self._counter("model_loads", "Loads by outcome: ready, failed, cancelled.", "outcome")
        self.model_evictions = self._counter("model_evictions", "Unloads that made room for another model.")
        self.model_load_seconds = self._histogram("model_load_seconds", "First wait for room to ready.", REQUEST_S)
        self.model_memory_bytes = self._gauge("model_memory_bytes", "Bytes that the model holds on each device.")


class ModelSeries(Collector):
    """The series of all models, each sample with the label `model_name`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._template = ModelMetrics()
        self._models: dict[str, ModelMetrics] = {}

    def of_model(self, name: str) -> ModelMetrics:
        """Return the series of a model, which are created at the first call."""
        with self._lock:
            if name not in self._models:
                self._models[name] = ModelMetrics()
            return self._models[name]

    def loads(self) -> dict[str, ModelLoad]:
        """Return the load of every model, by name."""
        with self._lock:
            return {name: model.load for name, model in self._models.items()}

    @override
    def collect(self) -> Iterable[Metric]:
        """Return every series, without samples while there is no model."""
        with self._lock:
            models = dict(self._models)
        collected = {name: list(model.registry.collect()) for name, model in models.items()}
        for index, family in enumerate(self._template.registry.collect()):
            merged = Metric(family.name, family.documentation, family.type)
            for name, families in collected.items():
                merged.samples += [
                    sample._replace(labels={LABEL: name, **sample.labels}) for sample in families[index].samples
                ]
            yield merged
