"""Start, drain, stop: what the platform sees."""

import signal
import socket
import threading

import httpx
import openai
import pytest

from tests.fault_proxy import Fault
from tests.process import ServiceProcess, running_service
from tests.served import CACHE, DEMO

pytestmark = pytest.mark.usefixtures("cold_start")

SLOW = {"model": "levserve-demo", "prompt": "Count", "max_tokens": 900, "stream": True}


@pytest.fixture
def may_pass():
    """Set for a start to get the weights."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def held_back(tmp_path, gcs_bucket, may_pass):
    """The settings of a start that gets no weights from its bucket until it may."""
    gcs_bucket.upload_directory(DEMO, "tiny")
    gcs_bucket.faults([Fault("safetensors.*alt=media", times=1000, before=may_pass.wait)])
    return {
        "model_uri": gcs_bucket.uri("tiny"),
        "storage_emulator_host": gcs_bucket.endpoint,
        "local_model_cache": tmp_path / "cache",
        "bundle_uri": CACHE / "bundles",
    }


def test_the_port_answers_while_the_model_is_on_its_way(held_back, may_pass):
    with ServiceProcess(**held_back) as service:
        url = service.url
        assert httpx.get(f"{url}/health/live").status_code == 200
        early = httpx.get(f"{url}/health/ready")
        assert early.status_code == 503
        assert early.json()["status"] == "starting"
        assert {"phase", "seconds", "bytes_done", "bytes_total", "executables_done"} <= early.json().keys()
        with pytest.raises(openai.InternalServerError) as refusal:
            service.client().models.list()
        assert (refusal.value.status_code, refusal.value.code) == (503, "not_ready")
        assert int(refusal.value.response.headers["retry-after"]) > 0
        may_pass.set()
        service.wait_until_ready()
        assert httpx.get(f"{url}/health/ready").json()["status"] == "complete"
        assert service.stop(signal.SIGINT) == 0


def test_sigterm_lets_a_running_stream_finish_refuses_new_work_and_exits_with_0():
    with running_service(api_key="one, two") as service:
        clients = [service.client(api_key=key) for key in ("one", "two")]
        with pytest.raises(openai.AuthenticationError):
            service.client(api_key="three").models.list()
        assert httpx.get(f"{service.url}/health/live").status_code == 200
        stream = clients[0].completions.create(**SLOW | {"max_tokens": 300}, extra_body={"ignore_eos": True})
        next(iter(stream))
        service.process.send_signal(signal.SIGTERM)
        service.wait_for("stopping", timeout_s=60)
        with pytest.raises((openai.InternalServerError, openai.APIConnectionError)) as refusal:
            clients[1].models.list()
        if isinstance(refusal.value, openai.InternalServerError):
            assert refusal.value.code == "shutting_down"
        service.process.send_signal(signal.SIGTERM)  # changes nothing
        chunks = list(stream)
        assert chunks[-1].choices[0].finish_reason == "length"
        assert service.exit_code == 0


@pytest.mark.slow
def test_what_outlives_the_drain_ends_with_an_error_event_and_the_exit_code_is_still_0():
    with running_service(drain_seconds=0.2) as service:
        streams = [service.client().completions.create(**SLOW, extra_body={"ignore_eos": True}) for _ in range(12)]
        for stream in streams:
            next(iter(stream))
        service.process.send_signal(signal.SIGTERM)
        outcomes = []

        def read(stream):
            try:
                outcomes.append(list(stream)[-1].choices[0].finish_reason)
            except openai.APIError as error:
                outcomes.append(error.code)

        threads = [threading.Thread(target=read, args=(stream,)) for stream in streams]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert service.exit_code == 0
        assert len(outcomes) == 12
        assert "shutting_down" in outcomes
    assert [line for line in service.log if line.get("severity") in ("ERROR", "CRITICAL")] == []


@pytest.mark.slow
def test_a_second_sigint_ends_it_at_once():
    with running_service(drain_seconds=60) as service:
        options = {**SLOW, "max_tokens": 900}
        streams = [service.client().completions.create(**options, extra_body={"ignore_eos": True}) for _ in range(12)]
        for stream in streams:
            next(iter(stream))
        service.process.send_signal(signal.SIGINT)
        service.wait_for("stopping", timeout_s=60)
        service.process.send_signal(signal.SIGINT)
        assert service.exit_code == 0
        num_cut = 0
        for stream in streams:
            try:
                list(stream)
            except (openai.APIError, httpx.HTTPError):
                num_cut += 1
        assert num_cut  # of those whose slots came late
    assert [line for line in service.log if line.get("severity") in ("ERROR", "CRITICAL")] == []


def test_sigterm_during_the_start_ends_the_process_at_once_with_0(held_back):
    with ServiceProcess(**held_back) as service:
        service.wait_for("start: import", timeout_s=60, part="jax")
        assert service.stop() == 0
        assert {"answering", "ready"}.isdisjoint(line["message"] for line in service.log)


def test_a_port_in_use_is_one_line_and_exit_code_1():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with ServiceProcess(port=port) as service:
            assert service.exit_code == 1
    [line] = service.log
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use." in line["message"]
    assert line["severity"] == "ERROR"
