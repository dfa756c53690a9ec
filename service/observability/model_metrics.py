"""The Prometheus series of a model's requests and engine, and a collector that labels them with `model_name`.

Source: https://docs.vllm.ai/en/latest/usage/metrics.html (names and label)
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import override

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from service.observability.exposition import OWN_PREFIX
from service.observability.model_load import ADAPTER_LABELS, ModelLoad, total

LABEL = "model_name"
ENGINE_LABEL = "engine"  # its number, where a model has several
# By the names of the gauges: what they say, and their value for one engine.
LOAD_GAUGES: Mapping[str, tuple[str, Callable[[ModelLoad], float]]] = {
    "num_requests_running": ("Sequences that hold a slot.", lambda load: load.num_running),
    "num_requests_waiting": ("Requests that wait for a slot or for pages.", lambda load: load.num_waiting),
    "kv_cache_usage_perc": ("Share of KV pages in use, 0 to 1.", lambda load: load.kv_cache_usage),
    "mm_cache_usage_perc": ("Share of the places for rows of images in use, 0 to 1.", lambda load: load.media_usage),
}

# Buckets of histograms, in the range that each can measure.
# From a cached prefix to a long prompt in a long queue, in seconds.
FIRST_TOKEN_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
# From a small model on an accelerator to a large one on a CPU that shares its steps with long prompts, in seconds.
TOKEN_S = (0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)
# From a single vector to a response beyond the default REQUEST_TIMEOUT, in seconds.
REQUEST_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0)
# Prompts and completions, in tokens: 1, 2, 5, 10, … 1,000,000.
TOKENS = (*(digit * 10**power for power, digit in product(range(6), (1, 2, 5))), 1_000_000)
# Tokens of one step: powers of two, like its shapes.
STEP_TOKENS = tuple(2**power for power in range(15))
# Choices of a request.
CHOICES = (1, 2, 3, 4, 5, 8, 16, 32, 64)


class SeriesSet:
    """Series in a separate registry, so that tests and models do not share counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        return Gauge(f"{OWN_PREFIX}{name}", text, labels, registry=self.registry)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"{OWN_PREFIX}{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        return Histogram(f"{OWN_PREFIX}{name}", text, buckets=buckets, registry=self.registry)


class LoadSeries(Collector):
    """The gauges of a model's load as it is when they are read, of each engine if there are several."""

    def __init__(self, loads: Sequence[ModelLoad]) -> None:
        self._loads = loads

    @override
    def collect(self) -> Iterable[Metric]:
        for name, (text, value) in LOAD_GAUGES.items():
            yield self._family(name, text, (), lambda load, value=value: [((), value(load))])
        text = "The waiting ones, by what the first of them lacks: slots or pages."
        yield self._family(
            "num_requests_waiting_by_reason",
            text,
            ("reason",),
            lambda load: [((reason,), number) for reason, number in load.num_waiting_by_reason.items()],
        )
        text = "When adapters changed last; the labels name them."
        yield self._family("lora_requests_info", text, ADAPTER_LABELS, lambda load: [(load.adapters, load.updated_at)])

    def _family(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        samples: Callable[[ModelLoad], Sequence[tuple[Sequence[str], float]]],
    ) -> Metric:
        is_single = len(self._loads) == 1
        of_engine = () if is_single else (ENGINE_LABEL,)
        family = GaugeMetricFamily(f"{OWN_PREFIX}{name}", text, labels=(*of_engine, *labels))
        for number, load in enumerate(self._loads):
            for values, value in samples(load):
                family.add_metric((*(() if is_single else (str(number),)), *values), value)
        return family


class ModelMetrics(SeriesSet):
    """The series of one model, without its name label; they keep counting across reloads."""

    def __init__(self) -> None:
        super().__init__()
        self._loads = [ModelLoad()]  # of each engine
        self._add_load()
        self._add_tokens()
        self._add_requests()
        self._add_times()
        self._add_loading()

    @property
    def load(self) -> ModelLoad:
        """The load of all engines together."""
        return total(self._loads)

    def load_of(self, engine: int) -> ModelLoad:
        """Return the load of one engine, which its device thread writes."""
        while len(self._loads) <= engine:
            self._loads.append(ModelLoad())
        return self._loads[engine]

    def value(self, name: str) -> float:
        """Return the current value of a series without labels by its full name; 0 if there is no such series."""
        return self.registry.get_sample_value(name) or 0.0

    def clear_state(self) -> None:
        """Reset the gauges of the model's state when it is unloaded."""
        for load in self._loads:
            load.clear()
        self.model_memory_bytes.set(0)
        self.cache_config_info.clear()

    def _add_load(self) -> None:
        self.registry.register(LoadSeries(self._loads))
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
        self.spec_decode_num_drafts = self._counter("spec_decode_num_drafts", "Drafts of one or more tokens.")
        self.spec_decode_num_draft_tokens = self._counter("spec_decode_num_draft_tokens", "Tokens that were drafted.")
        self.spec_decode_num_accepted_tokens = self._counter(
            "spec_decode_num_accepted_tokens", "Drafted tokens that were accepted."
        )
        self.spec_decode_num_accepted_tokens_per_pos = self._counter(
            "spec_decode_num_accepted_tokens_per_pos", "The same, by their position in a draft.", "position"
        )
        self.embedding_cache_hits = self._counter("embedding_cache_hits", "Texts whose vectors were cached.")
        self.embedding_cache_misses = self._counter("embedding_cache_misses", "Texts whose vectors were not cached.")

        self.audio_seconds = self._counter("audio_seconds", "Seconds of audio that were transcribed.")
        self.audio_windows = self._counter("audio_windows", "Windows of recordings that were decoded.")
        self.audio_fallbacks = self._counter("audio_fallbacks", "Decodings of a window after its first.")
        self.mm_cache_queries = self._counter("mm_cache_queries", "Images and windows that were to be encoded.")
        self.mm_cache_hits = self._counter("mm_cache_hits", "Of these, those whose encoding was found.")
        self.images = self._counter("images", "Images of chats.")
        self.image_tokens = self._counter("image_tokens", "Tokens of prompts whose places images took.")

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

    def _add_loading(self) -> None:
        self.model_loads = self._counter("model_loads", "Loads by outcome: ready, failed, cancelled.", "outcome")
        self.model_evictions = self._counter("model_evictions", "Unloads that made room for another model.")
        self.model_load_seconds = self._histogram("model_load_seconds", "First wait for room to ready.", REQUEST_S)
        self.model_memory_bytes = self._gauge("model_memory_bytes", "Bytes that the model holds on each device.")


class ModelSeries(Collector):
    """Collects the series of all models, labeling each sample with `model_name`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._template = ModelMetrics()
        self._models: dict[str, ModelMetrics] = {}

    def of_model(self, name: str) -> ModelMetrics:
        """Return the series of a model, created on first use."""
        with self._lock:
            if name not in self._models:
                self._models[name] = ModelMetrics()
            return self._models[name]

    def loads(self) -> dict[str, ModelLoad]:
        with self._lock:
            return {name: model.load for name, model in self._models.items()}

    @override
    def collect(self) -> Iterable[Metric]:
        """Yield every series, without samples if there are no models."""
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
