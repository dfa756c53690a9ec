"""The series that one process exposes: names, buckets, and vLLM's names beside its own."""

from prometheus_client.parser import text_string_to_metric_families

from service.observability.exposition import VLLM_NAMES
from service.observability.metrics import Metrics


def families(metrics: Metrics) -> dict:
    return {family.name: family for family in text_string_to_metric_families(metrics.exposition().decode())}


def test_vllms_names_come_only_where_they_are_asked_for():
    assert not [name for name in families(Metrics()) if name.startswith("vllm:")]
    asked = Metrics(has_vllm_names=True)
    asked.of_model("a")
    own = families(asked)
    assert {
        name.removeprefix("vllm:") for name in own if name.startswith("vllm:") and not name.endswith("_created")
    } == VLLM_NAMES
    assert {name.removeprefix("levserve_") for name in own if name.startswith("levserve_")} > VLLM_NAMES


def test_both_names_have_the_same_values():
    metrics = Metrics(has_vllm_names=True)
    model = metrics.of_model("org/chat")
    model.load.num_waiting = 3
    model.request_success.labels("stop").inc()
    model.time_to_first_token_seconds.observe(0.3)
    shown = families(metrics)
    for name in ("num_requests_waiting", "request_success", "time_to_first_token_seconds"):
        own, copy = shown[f"levserve_{name}"], shown[f"vllm:{name}"]
        assert copy.type == own.type
        assert [(s.name.removeprefix("vllm:"), s.labels, s.value) for s in copy.samples] == [
            (s.name.removeprefix("levserve_"), s.labels, s.value) for s in own.samples
        ]
    [waiting] = shown["vllm:num_requests_waiting"].samples
    assert (waiting.labels, waiting.value) == ({"model_name": "org/chat"}, 3)


def test_models_are_counted_apart_and_keep_their_counts():
    metrics = Metrics()
    for name, num_tokens in (("a", 1), ("b", 2), ("a", 3)):
        metrics.of_model(name).generation_tokens.inc(num_tokens)
        metrics.of_model(name).engine_steps.labels("decode").inc()
    metrics.of_model("b").load.num_pages, metrics.of_model("b").load.num_used_pages = 100, 50
    assert metrics.registry.get_sample_value("levserve_kv_cache_usage_perc", {"model_name": "b"}) == 0.5
    metrics.of_model("b").cache_config_info.labels("16", "100").set(1)
    metrics.of_model("b").clear_state()
    value = metrics.registry.get_sample_value
    assert [value("levserve_generation_tokens_total", {"model_name": name}) for name in "ab"] == [4, 2]
    assert value("levserve_engine_steps_total", {"model_name": "a", "kind": "decode"}) == 2
    assert value("levserve_kv_cache_usage_perc", {"model_name": "b"}) == 0
    assert families(metrics)["levserve_cache_config_info"].samples == []


def test_the_process_is_measured_under_the_usual_names():
    assert {"process_resident_memory_bytes", "process_open_fds", "process_start_time_seconds"} <= families(
        Metrics()
    ).keys()


def test_histograms_have_bounds_for_what_they_measure():
    metrics = Metrics()
    metrics.of_model("a")
    shown = families(metrics)
    bounds = {
        name: [float(s.labels["le"]) for s in family.samples if s.name.endswith("_bucket") and not s.labels.get("x")]
        for name, family in shown.items()
        if family.type == "histogram"
    }
    assert all(found == sorted(set(found)) for found in bounds.values())
    assert bounds["levserve_inter_token_latency_seconds"][-2] <= 10
    assert bounds["levserve_request_prompt_tokens"][-2] >= 1_000_000
    assert bounds["levserve_e2e_request_latency_seconds"][-2] >= 600
