"""Two processes on one bucket, over real sockets: what one cancels or deletes the other does not bring back."""

import contextlib
import random
import subprocess
import sys
import time

import httpx
import pytest

from tests.api.scripted_engine import MODEL

NUM_ORDERS = 100


@pytest.fixture
def processes(gcs_bucket):
    """A client of each of two processes."""
    arguments = [sys.executable, "-m", "tests.api.memory.bucket_process", gcs_bucket.endpoint, gcs_bucket.name]
    with contextlib.ExitStack() as ends:
        started = [subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        for process in started:
            ends.enter_context(process)
            ends.callback(process.kill)
        ports = [int(process.stdout.readline()) for process in started]
        yield [ends.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{p}/v1", timeout=60)) for p in ports]


def state_of(client, response_id):
    answer = client.get(f"/responses/{response_id}")
    return None if answer.status_code == 404 else answer.json()["status"]


@pytest.mark.slow
def test_what_one_process_cancels_or_deletes_no_other_brings_back(processes):
    rng, told = random.Random(0), {}

    def create(client):
        answer = client.post("/responses", json={"model": MODEL, "input": "hi", "background": True})
        assert answer.status_code == 200, answer.text
        return answer.json()["id"]

    for number in range(NUM_ORDERS):
        maker, other = rng.sample(processes, 2)
        response_id = create(maker)
        time.sleep(rng.uniform(0.0, 0.15))
        asked = rng.choice((maker, other, other))
        if number % 2:
            answer = asked.post(f"/responses/{response_id}/cancel", json={})
            assert answer.status_code == 200, answer.text
            told[response_id] = answer.json()["status"]
        else:
            assert asked.delete(f"/responses/{response_id}").status_code == 200
            told[response_id] = None
        assert {state_of(client, response_id) for client in processes} == {told[response_id]}
    for maker in processes:  # all that began before have ended when these have
        last = create(maker)
        while state_of(maker, last) in ("queued", "in_progress"):
            time.sleep(0.05)
    for client in processes:
        assert {response_id: state_of(client, response_id) for response_id in told} == told
    assert list(told.values()).count("cancelled") > NUM_ORDERS // 10
