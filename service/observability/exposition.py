"""Prometheus collectors that also export some series under vLLM's prefix.

Source: https://docs.vllm.ai/en/latest/usage/metrics.html (names),
https://github.com/kubernetes-sigs/gateway-api-inference-extension/tree/main/docs/proposals/003-model-server-protocol
(what a gateway's endpoint picker scrapes)
"""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

OWN_PREFIX, VLLM_PREFIX = "levserve_", "vllm:"
# Series with the same meaning as in vLLM, without prefix and type suffix.
VLLM_NAMES = frozenset(
    {
        "cache_config_info",
        "e2e_request_latency_seconds",
        "generation_tokens",
        "inter_token_latency_seconds",
        "iteration_tokens_total",
        "kv_cache_usage_perc",
        "lora_requests_info",
        "num_preemptions",
        "num_requests_running",
        "num_requests_waiting",
        "num_requests_waiting_by_reason",
        "prefix_cache_hits",
        "prefix_cache_queries",
        "prompt_tokens",
        "request_decode_time_seconds",
        "request_generation_tokens",
        "request_inference_time_seconds",
        "request_params_max_tokens",
        "request_params_n",
        "request_prefill_time_seconds",
        "request_prompt_tokens",
        "request_queue_time_seconds",
        "request_success",
        "request_time_per_output_token_seconds",
        "spec_decode_num_accepted_tokens",
        "spec_decode_num_accepted_tokens_per_pos",
        "spec_decode_num_draft_tokens",
        "spec_decode_num_drafts",
        "time_to_first_token_seconds",
    }
)


class VllmNames(Collector):
    """The series of a registry that vLLM also has, under vLLM's names."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        """Yield a copy of each series with its current values."""
        for metric in self._registry.collect():
            if metric.name.removeprefix(OWN_PREFIX) in VLLM_NAMES:
                copy = Metric(_renamed(metric.name), metric.documentation, metric.type)
                copy.samples = [
                    Sample(_renamed(sample.name), sample.labels, sample.value, sample.timestamp, sample.exemplar)
                    for sample in metric.samples
                ]
                yield copy


class BothNames(Collector):
    """All series of a registry, followed by `VllmNames`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._parts = (registry, VllmNames(registry))

    def collect(self) -> Iterable[Metric]:
        for part in self._parts:
            yield from part.collect()


def _renamed(name: str) -> str:
    return VLLM_PREFIX + name.removeprefix(OWN_PREFIX)
