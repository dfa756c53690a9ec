"""A process whose stdout nobody reads goes on, and says later what happened meanwhile."""

import threading

import httpx
import pytest

from tests.process import STOP_TIMEOUT_S, ServiceProcess

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("cold_start")]

NUM_LINES = 300  # of some 700 bytes each: a pipe holds 64 KB
COMPLETION = {"model": "levserve-demo", "prompt": "Count", "max_tokens": 20, "ignore_eos": True, "stream": True}


class UnreadLog(ServiceProcess):
    """A service whose log is read only while `is_read` is set."""

    def __init__(self, **settings):
        self.is_read = threading.Event()
        self.is_read.set()
        super().__init__(**settings)

    def _keep(self, line):
        super()._keep(line)
        self.is_read.wait()


def fill_log(service):
    """Stop reading and have more lines logged than the pipe holds; return the ids of their requests."""
    service.is_read.clear()
    with httpx.Client(base_url=service.url, timeout=20) as client:
        return [client.get("/nowhere").headers["x-request-id"] for _ in range(NUM_LINES)]


def test_requests_are_answered_while_nobody_reads_the_log_and_no_line_is_lost():
    with UnreadLog() as service:
        url = service.wait_until_ready().url
        ids = fill_log(service)
        assert httpx.get(f"{url}/health/live", timeout=20).status_code == 200
        answer = httpx.post(f"{url}/v1/completions", json=COMPLETION, timeout=20)
        ids.append(answer.headers["x-request-id"])
        num_read = len(service.log)
        service.is_read.set()
        assert service.stop() == 0
    assert answer.text.endswith("data: [DONE]\n\n")
    assert num_read < NUM_LINES
    assert [line["request_id"] for line in service.log if line["message"] == "request"] == ids
    assert [line["message"] for line in service.log].count("drained") == 1
    assert not any("dropped_log_lines" in line for line in service.log)


def test_a_process_whose_log_nobody_reads_ends():
    with UnreadLog() as service:
        service.wait_until_ready()
        fill_log(service)
        service.process.terminate()
        try:
            assert service.process.wait(STOP_TIMEOUT_S) == 0
        finally:
            service.is_read.set()
