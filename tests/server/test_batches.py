"""A batch outlives its process: drained or killed in the middle, the next start continues it."""

import io
import json
import signal
import time

import pytest

from tests.process import running_service
from tests.served import SMALL

pytestmark = pytest.mark.slow

ENDPOINT = "/v1/completions"
NUM_LINES = 60


def line(number):
    body = {
        "model": "levserve-demo",
        "prompt": f"Count {number}",
        "max_tokens": 40,
        "temperature": 0,
        "ignore_eos": True,
    }
    return json.dumps({"custom_id": f"n{number}", "method": "POST", "url": ENDPOINT, "body": body})


def begin(client):
    content = "\n".join(map(line, range(NUM_LINES))).encode()
    file = client.files.create(file=("in.jsonl", io.BytesIO(content)), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")


def wait(client, batch, *, num_done=0, until=None):
    give_up_at = time.monotonic() + 120
    while (batch := client.batches.retrieve(batch.id)).request_counts.completed < num_done or until not in (
        None,
        batch.status,
    ):
        assert time.monotonic() < give_up_at, batch
        time.sleep(0.01)
    return batch


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL])
def test_a_batch_continues_after_a_restart_and_clients_come_first(tmp_path, one_sequence, sig):
    settings = SMALL | {"local_model_cache": one_sequence.cache, "batch_uri": tmp_path / "batches"}
    with running_service(**settings) as first:
        client = first.client()
        batch = begin(client)
        wait(client, batch, num_done=3)
        # The one slot is the batch's, and is given to the client at once.
        asked = client.completions.create(model="levserve-demo", prompt="Count", max_tokens=4)
        assert asked.usage.completion_tokens > 0
        counts = client.batches.retrieve(batch.id).request_counts
        assert counts.completed < NUM_LINES
        assert first.stop(sig) == (0 if sig == signal.SIGTERM else -sig)
    with running_service(**settings) as second:
        client = second.client()
        done = wait(client, batch, until="completed")
        lines = [json.loads(text) for text in client.files.content(done.output_file_id).text.splitlines()]
    assert sorted(line["custom_id"] for line in lines) == sorted(f"n{i}" for i in range(NUM_LINES))
    assert done.usage.output_tokens == 40 * NUM_LINES
    assert done.error_file_id is None
