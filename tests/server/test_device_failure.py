"""A device that is lost under load: every client is told, the platform sees it, and the process ends."""

import concurrent.futures
import json
import time

import httpx
import pytest

from tests.process import ServiceProcess

pytestmark = pytest.mark.usefixtures("cold_start")

NUM_STREAMS = 6
NUM_WAITING = 3  # beyond the slots
NUM_STEPS = 150  # enough time for those who wait to come
COMPLETION = {"model": "levserve-demo", "prompt": "Count", "max_tokens": 900, "ignore_eos": True}
CHAT = {"model": "levserve-demo", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 900}


def read(url, index):
    """Return the events of one stream, half of them chats', until the server ends it."""
    path, body = ("chat/completions", CHAT | {"ignore_eos": True}) if index % 2 else ("completions", COMPLETION)
    with httpx.stream("POST", f"{url}/v1/{path}", json=body | {"stream": True}, timeout=60) as response:
        assert response.status_code == 200
        return [line.removeprefix("data: ") for line in response.iter_lines() if line]


def told(url, *, streamed):
    """Return how a request ends that waits for a slot."""
    answer = httpx.post(f"{url}/v1/completions", json=COMPLETION | {"stream": streamed}, timeout=60)
    return answer.status_code, answer.json()["error"]["code"]


def wait_until(url, series, value):
    """Wait until the service shows this value of a series."""
    end_s = time.monotonic() + 20
    while f'levserve_{series}{{model_name="levserve-demo"}} {value}' not in httpx.get(f"{url}/metrics").text:
        assert time.monotonic() < end_s
        time.sleep(0.02)


@pytest.mark.slow
def test_every_stream_ends_with_an_error_event_liveness_fails_and_the_process_exits_with_1():
    # The device fails once so many run at once; the service has as many slots.
    num_running = NUM_STREAMS + 1
    facts = {"failing_num_sequences": num_running, "failing_num_steps": NUM_STEPS, "max_num_seqs": num_running}
    with ServiceProcess(module="tests.server.failing_service", **facts) as service:
        url = service.wait_until_ready().url
        assert httpx.get(f"{url}/health/live").status_code == 200
        with concurrent.futures.ThreadPoolExecutor(NUM_STREAMS + 1 + NUM_WAITING) as pool:
            streams = [pool.submit(read, url, index) for index in range(NUM_STREAMS)]
            whole = pool.submit(httpx.post, f"{url}/v1/completions", json=COMPLETION, timeout=60)
            wait_until(url, "num_requests_running", f"{num_running}.0")
            waiting = [pool.submit(told, url, streamed=index % 2 == 0) for index in range(NUM_WAITING)]
            wait_until(url, "num_requests_waiting", f"{NUM_WAITING}.0")
            ends = [stream.result() for stream in streams]
            failure = whole.result()
            told_to_waiting = [answer.result() for answer in waiting]
        live, late = httpx.get(f"{url}/health/live"), httpx.post(f"{url}/v1/completions", json=COMPLETION)
        exit_code = service.exit_code

    for events in ends:
        assert len(events) > NUM_STEPS // 2  # what was there when the device was lost; not every token ends a character
        assert all("choices" in json.loads(event) for event in events[:-1])
        error = json.loads(events[-1])["error"]
        assert (error["type"], error["code"]) == ("server_error", "engine_error")
    assert (failure.status_code, failure.json()["error"]["code"]) == (500, "engine_error")
    assert told_to_waiting == [(500, "engine_error")] * NUM_WAITING
    assert live.status_code == 503
    assert (late.status_code, late.json()["error"]["code"]) == (503, "engine_stopped")
    assert exit_code == 1
    critical = [line for line in service.log if line.get("severity") == "CRITICAL"]
    assert len(critical) == 1
    assert "RuntimeError: device lost" in "\n".join(service.raw)


HANGING = {
    "module": "tests.server.failing_service",
    "failing_num_sequences": 2,
    "failing_num_steps": 12,
    "failing_hangs": "yes",
}


def last_words(url, index):
    """Return the error that ends a stream, whether it had begun or not."""
    body = COMPLETION | {"stream": True, "prompt": f"Count {index}"}
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as response:
        last = [line.removeprefix("data: ") for line in response.iter_lines() if line][-1]
    return json.loads(last)["error"]["code"]


@pytest.mark.slow
def test_a_step_that_hangs_ends_every_stream_and_the_process():
    with ServiceProcess(**HANGING, watchdog_seconds=1) as service:
        url = service.wait_until_ready().url
        with concurrent.futures.ThreadPoolExecutor(NUM_STREAMS + 1) as pool:
            assert set(pool.map(last_words, [url] * 2, range(2))) == {"engine_stopped"}
        exit_code = service.exit_code
    assert exit_code == 1
    [critical] = [line for line in service.log if line.get("severity") == "CRITICAL"]
    assert critical["watchdog_seconds"] == 1
