"""A start without a bundle: it answers with few executables, keeps each one, and survives one that fails."""

import signal

import httpx
import pytest

from tests.process import START_TIMEOUT_S, ServiceProcess, running_service
from tests.served import ADMIN, SMALL, answers_of, stats_of

pytestmark = pytest.mark.slow

# Compiled as for users.
COLD = {**SMALL, "admin_api_key": "operator", "jax_disable_most_optimizations": "false"}


def health(service):
    return httpx.get(f"{service.url}/health/ready")


def test_a_start_that_is_killed_while_it_compiles_loses_no_executable(tmp_path, demo_answers):
    settings = COLD | {"local_model_cache": tmp_path}
    with ServiceProcess(**settings) as service:
        service.wait_for("answering", timeout_s=START_TIMEOUT_S)
        assert (health(service).status_code, health(service).json()["status"]) == (200, "answering")
        assert answers_of(service, demo_answers[:1]) == [demo_answers[0]["answer"]]
        done = health(service).json()["executables_done"]
        service.process.send_signal(signal.SIGKILL)
    with running_service(**settings) as service:
        kept = service.wait_for("reusing the executables of an interrupted start", timeout_s=60)["executables_kept"]
        stats = stats_of(service)
        total = health(service).json()["executables_total"]
        assert kept >= done > 5
        assert stats["compiles"] == total - kept
        assert (health(service).status_code, health(service).json()["status"]) == (200, "complete")
        assert answers_of(service, demo_answers[:2]) == [pair["answer"] for pair in demo_answers[:2]]
        service.wait_for("bundle stored", timeout_s=30)
        assert "levserve_xla_compiles_after_ready_total 0.0" in httpx.get(f"{service.url}/metrics").text
    assert not list((tmp_path / "bundles").glob(".*kept"))
    with running_service(**settings) as service:
        assert stats_of(service)["compiles"] == 0


def test_sigterm_while_it_compiles_and_answers_ends_it_in_time(tmp_path):
    with ServiceProcess(**COLD, local_model_cache=tmp_path) as service:
        service.wait_for("answering", timeout_s=START_TIMEOUT_S)
        assert service.stop() == 0
        assert "ready" not in [line["message"] for line in service.log]


def test_an_executable_that_cannot_be_compiled_is_told_and_the_service_goes_on(tmp_path, demo_answers):
    settings = COLD | {"local_model_cache": tmp_path, "ready_when": "complete"}
    with ServiceProcess(module="tests.server.failing_compile", **settings) as service:
        message = "an executable failed to load or compile; the service continues without it"
        assert "no such instruction" in service.wait_for(message, timeout_s=START_TIMEOUT_S)["reason"]
        answer = health(service)
        assert (answer.status_code, answer.json()["status"]) == (503, "answering")
        assert "no such instruction" in answer.json()["incomplete_because"]
        assert answers_of(service, demo_answers[:2]) == [pair["answer"] for pair in demo_answers[:2]]
        assert httpx.get(f"{service.url}/admin/stats", headers=ADMIN).json()["is_ready"] is False
        assert service.stop() == 0
    assert not list((tmp_path / "bundles").glob("*/manifest.json"))
