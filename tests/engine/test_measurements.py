"""Counters of the device thread, for a scheduler that is short of slots or pages, or preempts."""

import pytest

from service.engine.loop import Measurements
from service.engine.request import FinishReason
from service.observability.clock import Clock
from service.observability.model_metrics import ModelMetrics
from tests.engine.schedule.scheduling import make_request, make_scheduler, step


@pytest.mark.parametrize(("sizes", "reason"), [({"num_slots": 1}, "slots"), ({"num_pages": 2}, "pages")])
def test_waiting_requests_are_counted_by_what_they_lack(sizes, reason):
    scheduler, metrics = make_scheduler(**sizes), ModelMetrics()
    measurements = Measurements(scheduler, metrics, metrics.load_of(0))
    for name in "abc":
        scheduler.add(make_request(name, prompt_len=5, max_tokens=2))
    step(scheduler)
    measurements.state()
    value = metrics.registry.get_sample_value
    by_reason = {key: value("levserve_num_requests_waiting_by_reason", {"reason": key}) for key in ("slots", "pages")}
    assert by_reason == {"slots": 0, "pages": 0} | {reason: 2}
    assert value("levserve_num_requests_waiting") == 2
    assert value("levserve_cache_config_info", {"block_size": "4", "num_gpu_blocks": str(sizes.get("num_pages", 16))})


def test_preemptions_are_counted_once():
    scheduler, metrics = make_scheduler(num_pages=3), ModelMetrics()
    measurements = Measurements(scheduler, metrics, metrics.load_of(0))
    for name in "ab":
        scheduler.add(make_request(name, prompt_len=4, max_tokens=8))
    while scheduler.num_preemptions == 0:
        step(scheduler)
    for _ in range(2):
        measurements.state()
    assert metrics.registry.get_sample_value("levserve_num_preemptions_total") == scheduler.num_preemptions


def test_an_aborted_request_has_lengths_and_no_times():
    scheduler, metrics = make_scheduler(), ModelMetrics()
    sequence, clock = scheduler.add(make_request("a", prompt_len=5)), Clock(0.0)
    Measurements(scheduler, metrics, metrics.load_of(0)).ended(sequence, clock, FinishReason.ABORT)
    value = metrics.registry.get_sample_value
    assert value("levserve_request_success_total", {"finished_reason": "abort"}) == 1
    assert value("levserve_request_prompt_tokens_sum") == 5
    assert value("levserve_e2e_request_latency_seconds_count") == 0
