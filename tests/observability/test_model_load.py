"""The series that endpoint pickers read, beside those of /metrics, and what they cost."""

import time

from prometheus_client.parser import text_string_to_metric_families

from service.observability.metrics import Metrics
from service.observability.model_load import ModelLoad, load_exposition

SERIES = {
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "vllm:cache_config_info",
    "vllm:lora_requests_info",
}


def samples(text: str) -> dict[str, list]:
    return {
        family.name: [(sample.labels, sample.value) for sample in family.samples]
        for family in text_string_to_metric_families(text)
    }


def busy(metrics: Metrics, name: str) -> None:
    model = metrics.of_model(name)
    load = model.load
    load.num_running, load.num_waiting, load.page_size, load.num_pages, load.num_used_pages = 3, 5, 16, 100, 25
    model.cache_config_info.labels("16", "100").set(1)


def test_they_are_those_of_all_series_under_vllms_names():
    metrics = Metrics(has_vllm_names=True)
    for name in ("a", 'or"g/b\\'):
        busy(metrics, name)
    load, whole = samples(metrics.load_exposition().decode()), samples(metrics.exposition().decode())
    assert load.keys() == SERIES
    assert load == {name: whole[name] for name in SERIES}
    assert load["vllm:kv_cache_usage_perc"][0] == ({"model_name": "a"}, 0.25)
    labels, value = load["vllm:lora_requests_info"][0]
    assert labels == {
        "model_name": "a", "max_lora": "0", "running_lora_adapters": "", "waiting_lora_adapters": ""
    }  # fmt: skip
    assert abs(value - time.time()) < 60


def test_a_model_that_is_not_loaded_has_no_pages():
    metrics = Metrics()
    busy(metrics, "a")
    metrics.of_model("a").clear_state()
    load = samples(metrics.load_exposition().decode())
    assert load["vllm:cache_config_info"] == []
    assert [load[f"vllm:{name}"][0][1] for name in ("num_requests_running", "kv_cache_usage_perc")] == [0, 0]


def test_every_model_has_five_series():
    loads = {f"model-{i}": ModelLoad(num_pages=100, page_size=16) for i in range(10)}
    assert len(load_exposition(loads).splitlines()) == 5 + 5 * 10


def test_the_share_of_the_memorys_speed_is_unknown_until_both_are_measured():
    assert ModelLoad().share_of_read_speed is ModelLoad(decode_s=0.1).share_of_read_speed is None
    load = ModelLoad(decode_s=0.1, least_decode_s=0.08)
    assert load.share_of_read_speed == 0.8
    load.clear()
    assert load.share_of_read_speed is None
