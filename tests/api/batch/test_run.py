"""Batches from their files to their results: resumed, cancelled, expired, and behind every other request."""

import asyncio
import io
import json
import threading
import time

import pytest

from service.api.batch.batches import Batches
from service.api.batch.files import Files
from service.api.batch.records import COMPLETION_WINDOW_S
from service.api.batch.run import BatchRun, ClaimLost
from service.engine.request import BACKGROUND_PRIORITY, FinishReason
from service.errors import EngineError, EngineStopped, Overloaded
from service.storage.folder_store import FolderStore
from service.storage.gcs.store import BucketStore
from service.storage.location import GcsLocation
from tests.api.batch.running import BatchService, request_line, running
from tests.api.scripted_engine import MODEL, STALL, Wait, tokens
from tests.api.vectors.scripted_encoder import MODEL as ENCODER
from tests.api.vectors.scripted_encoder import SIZE, EncoderService

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("endpoint", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
async def test_every_line_is_answered_as_its_route_answers(tmp_path, endpoint):
    async with running(tmp_path) as service:
        batch = await service.begin([request_line(f"n{i}", endpoint) for i in range(30)], endpoint=endpoint)
        assert batch["status"] == "validating"
        done = await service.until(batch["id"], "completed")
        outputs = await service.lines_of(done["output_file_id"])
        direct = (await service.post(endpoint, json.loads(request_line("n1", endpoint))["body"])).json()
    assert outputs.keys() == {f"n{i}" for i in range(30)}
    response = outputs["n1"]["response"]
    assert (response["status_code"], outputs["n1"]["error"]) == (200, None)
    assert response["body"].keys() == direct.keys()
    assert response["request_id"].startswith("req_")
    assert done["request_counts"] == {"total": 30, "completed": 30, "failed": 0}
    assert (done["error_file_id"], done["errors"], done["model"]) == (None, None, MODEL)
    num_tokens = 30 * len(tokens("Hello world"))
    assert done["usage"]["output_tokens"] == num_tokens
    assert done["usage"]["total_tokens"] == num_tokens + done["usage"]["input_tokens"]
    assert done["created_at"] <= done["in_progress_at"] <= done["finalizing_at"] <= done["completed_at"]
    assert done["expires_at"] == done["created_at"] + COMPLETION_WINDOW_S


async def test_a_refused_line_is_an_error_and_the_others_are_answered(tmp_path):
    async with running(tmp_path) as service:
        lines = [request_line("good"), request_line("hot", temperature=3), request_line("odd", echo=True)]
        done = await service.until((await service.begin(lines))["id"], "completed")
        outputs = await service.lines_of(done["output_file_id"])
        errors = await service.lines_of(done["error_file_id"])
        value = service.metrics.registry.get_sample_value
        while value("levserve_batches_ended_total", {"status": "completed"}) != 1:
            await asyncio.sleep(0.01)
    assert (outputs.keys(), errors.keys()) == ({"good"}, {"hot", "odd"})
    assert errors["hot"]["response"]["status_code"] == 400
    assert errors["hot"]["response"]["body"]["error"]["param"] == "temperature"
    assert done["request_counts"] == {"total": 3, "completed": 1, "failed": 2}
    assert [value("levserve_batch_lines_total", {"outcome": name}) for name in ("completed", "failed")] == [1, 2]


async def test_where_too_much_is_under_way_a_line_waits(tmp_path):
    async with running(tmp_path) as service:
        service.engine.refusal = Overloaded(running=1, limit=1, retry_after_s=1)
        batch = await service.begin([request_line("a")])
        await service.until(batch["id"], "in_progress")
        await asyncio.sleep(0.1)
        service.engine.refusal = None
        done = await service.until(batch["id"], "completed")
    assert done["request_counts"] == {"total": 1, "completed": 1, "failed": 0}


async def test_texts_are_embedded_in_a_batch(tmp_path):
    service = EncoderService(
        batches=(batches := Batches(store := FolderStore(tmp_path), Files(store, max_bytes=10**6)))
    )
    line = {
        "custom_id": "a",
        "method": "POST",
        "url": "/v1/embeddings",
        "body": {"model": ENCODER, "input": ["a", "b"]},
    }
    content = io.BytesIO(json.dumps(line).encode())
    stored = batches.files.add("open", content, len(content.getvalue()), filename="in.jsonl", purpose="batch")
    fields = {"metadata": None, "output_expires_after_s": None}
    created = batches.create("open", input_file_id=stored.id, endpoint="/v1/embeddings", **fields)
    run = BatchRun(
        created, batches, store.claim("a"), service.app, models=(ENCODER,), slots=asyncio.Semaphore(1),
        cancelled=asyncio.Event(), max_line_bytes=10_000,
    )  # fmt: skip
    await run.run()
    assert (created.status, created.completed) == ("completed", 1)
    assert created.document()["usage"]["input_tokens"] > 0
    with batches.files.open("open", created.output_file_id)[1] as file:
        answer = json.loads(file.read())
    assert [len(entry["embedding"]) for entry in answer["response"]["body"]["data"]] == [SIZE, SIZE]


async def test_a_sequence_that_fails_is_an_error_of_its_line(tmp_path):
    async with running(tmp_path, [EngineError("broken")]) as service:
        done = await service.until((await service.begin([request_line("a")]))["id"], "completed")
        errors = await service.lines_of(done["error_file_id"])
    assert errors["a"]["response"]["status_code"] == 500
    assert done["output_file_id"] is None


async def test_its_requests_come_after_all_others_and_a_bounded_number_at_once(tmp_path):
    async with running(tmp_path, [tokens("a")[0], STALL], max_in_flight=3) as service:
        await service.begin([request_line(f"n{i}", priority=i) for i in range(10)])
        await service.begin([request_line(f"m{i}") for i in range(10)])
        while len(service.engine.streams) < 3:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        # Requests in flight are tokenized on threads, which may overtake one another.
        priorities = sorted(stream.request.priority for stream in service.engine.streams)
    assert priorities == [BACKGROUND_PRIORITY + i for i in range(3)]
    assert all(stream.request.is_background for stream in service.engine.streams)


async def test_a_line_has_the_window_and_not_the_timeout_of_a_request(tmp_path):
    script = [*tokens("Hello world"), FinishReason.STOP]
    async with running(tmp_path, script, request_timeout_s=0.001) as service:
        service.engine.pace_s = 0.02
        done = await service.until((await service.begin([request_line("a")]))["id"], "completed")
    assert done["request_counts"]["completed"] == 1


async def test_a_stopped_run_is_continued_and_no_answer_is_made_twice(tmp_path):
    lines = [request_line(f"n{i}") for i in range(12)]
    async with running(tmp_path, max_in_flight=1) as first:
        first.engine.pace_s = 0.005
        batch = await first.begin(lines)
        while len(first.engine.streams) < 5:
            await asyncio.sleep(0.001)
    stopped = await first.get(f"/v1/batches/{batch['id']}")
    assert stopped.json()["status"] == "in_progress"
    num_done = stopped.json()["request_counts"]["completed"]
    assert 0 < num_done < 12
    async with running(tmp_path) as second:
        done = await second.until(batch["id"], "completed")
        outputs = await second.lines_of(done["output_file_id"])
    assert outputs.keys() == {f"n{i}" for i in range(12)}
    assert len(second.engine.streams) == 12 - num_done
    assert done["usage"]["output_tokens"] == 12 * len(tokens("Hello world"))


async def test_an_engine_that_stops_leaves_the_batch_to_the_next_process(tmp_path):
    async with running(tmp_path) as first:
        first.engine.refusal = EngineStopped("gone")
        batch = await first.begin([request_line("a")])
        while (
            batch["id"] in first.batches.live
            or not (await first.get(f"/v1/batches/{batch['id']}")).json()["in_progress_at"]
        ):
            await asyncio.sleep(0.01)
    async with running(tmp_path) as second:
        assert (await second.until(batch["id"], "completed"))["request_counts"]["completed"] == 1


async def test_two_processes_do_not_run_one_batch(tmp_path):
    async with running(tmp_path, [tokens("a")[0], STALL]) as first, running(tmp_path) as second:
        batch = await first.begin([request_line("a")])
        await first.until(batch["id"], "in_progress")
        second.batches.has_news.set()
        await asyncio.sleep(0.1)
        assert (await second.get(f"/v1/batches/{batch['id']}")).json()["status"] == "in_progress"
        assert second.engine.streams == []


class LostClaim:
    """A claim that another process takes while this one is suspended."""

    def renew(self):
        return False

    def release(self):
        pass


async def run_of(service, claim, **options):
    [(owner, batch_id)] = service.batches.queued()
    batch = service.batches.stored(owner, batch_id)
    fields = {"models": (MODEL,), "slots": asyncio.Semaphore(1), "cancelled": asyncio.Event(), "max_line_bytes": 10_000}
    await BatchRun(batch, service.batches, claim, service.app, **fields, **options).run()


@pytest.mark.parametrize("script", [[tokens("a")[0], STALL], None], ids=["while it answers", "before it finishes"])
async def test_a_process_that_lost_its_claim_writes_nothing_more(tmp_path, script):
    service = BatchService(FolderStore(tmp_path), script)
    batch = await service.begin([request_line("a")])
    with pytest.raises(ClaimLost):
        await run_of(service, LostClaim(), save_interval_s=0.05)
    assert (await service.get(f"/v1/batches/{batch['id']}")).json()["output_file_id"] is None
    async with running(tmp_path) as later:
        done = await later.until(batch["id"], "completed")
    assert done["request_counts"]["completed"] == 1


async def test_answers_and_counts_are_written_while_a_batch_runs(tmp_path):
    service = BatchService(FolderStore(tmp_path))
    service.engine.pace_s = 0.01
    batch = await service.begin([request_line(f"n{i}") for i in range(30)])
    running_one = asyncio.create_task(run_of(service, FolderStore(tmp_path).claim("a"), save_interval_s=0.02))
    other = BatchService(FolderStore(tmp_path))
    while len(service.engine.streams) < 3:
        await asyncio.sleep(0.001)
    service.engine.pace_s = 60  # the batch does not end before it is cancelled
    while not (await other.get(f"/v1/batches/{batch['id']}")).json()["request_counts"]["completed"]:
        await asyncio.sleep(0.01)
    # Another instance asks for the end.
    await other.post(f"/v1/batches/{batch['id']}/cancel")
    await running_one
    assert (await other.get(f"/v1/batches/{batch['id']}")).json()["status"] == "cancelled"


async def test_a_cancelled_batch_keeps_its_answers_and_names_the_other_lines(tmp_path):
    async with running(tmp_path, max_in_flight=1) as service:
        service.engine.pace_s = 0.005
        batch = await service.begin([request_line(f"n{i}") for i in range(20)])
        while len(service.engine.streams) < 5:
            await asyncio.sleep(0.001)
        cancelling = (await service.post(f"/v1/batches/{batch['id']}/cancel", headers={})).json()
        done = await service.until(batch["id"], "cancelled")
        outputs = await service.lines_of(done["output_file_id"])
        errors = await service.lines_of(done["error_file_id"])
        again = await service.post(f"/v1/batches/{batch['id']}/cancel")
    assert cancelling["status"] == "cancelling"
    assert done["cancelling_at"] <= done["cancelled_at"]
    assert outputs.keys() | errors.keys() == {f"n{i}" for i in range(20)}
    assert outputs.keys() & errors.keys() == set()
    assert len(outputs) == done["request_counts"]["completed"]
    assert {line["error"]["code"] for line in errors.values()} == {"batch_cancelled"}
    assert {line["response"] for line in errors.values()} == {None}
    assert again.json()["error"]["message"] == "Cannot cancel a batch with status 'cancelled'."
    assert service.engine.last.is_aborted


async def test_a_batch_that_waits_can_be_cancelled(tmp_path):
    service = BatchService(FolderStore(tmp_path))
    batch = await service.begin([request_line("a")])
    await service.post(f"/v1/batches/{batch['id']}/cancel")
    async with running(tmp_path) as later:
        done = await later.until(batch["id"], "cancelled")
        errors = await later.lines_of(done["error_file_id"])
    assert errors.keys() == {"a"}
    assert later.engine.streams == []


async def test_at_the_end_of_the_window_what_is_left_is_named(tmp_path, monkeypatch):
    service = BatchService(FolderStore(tmp_path))
    late = await service.begin([request_line("a"), request_line("b")])
    monkeypatch.setattr("service.api.batch.records.COMPLETION_WINDOW_S", 1)
    async with running(tmp_path, [tokens("a")[0], STALL]) as later:
        done = await later.until(late["id"], "expired")
        errors = await later.lines_of(done["error_file_id"])
    assert errors.keys() == {"a", "b"}
    assert {line["error"]["code"] for line in errors.values()} == {"batch_expired"}
    assert done["expired_at"] >= late["created_at"] + 1
    assert done["output_file_id"] is None


async def test_a_batch_outlives_its_input_file(tmp_path):
    service = BatchService(FolderStore(tmp_path))
    batch = await service.begin([request_line("a")])
    async with service.client() as client:
        assert (await client.delete(f"/v1/files/{batch['input_file_id']}")).json()["deleted"] is True
    async with running(tmp_path) as later:
        done = await later.until(batch["id"], "completed")
    assert done["request_counts"]["completed"] == 1


async def test_the_end_of_the_results_follows_the_request(tmp_path):
    async with running(tmp_path) as service:
        expiry = {"anchor": "created_at", "seconds": 7200}
        batch = await service.begin([request_line("a")], output_expires_after=expiry, metadata={"team": "one"})
        done = await service.until(batch["id"], "completed")
        output = (await service.get(f"/v1/files/{done['output_file_id']}")).json()
    assert output["expires_at"] == output["created_at"] + 7200
    assert (output["purpose"], output["filename"]) == ("batch_output", f"{batch['id']}_output.jsonl")
    assert done["metadata"] == {"team": "one"}


async def test_of_a_batch_that_has_ended_only_its_record_is_left(tmp_path):
    async with running(tmp_path) as service:
        batch = await service.begin([request_line("a")])
        await service.until(batch["id"], "completed")
        while service.batches.store.list("queue"):
            await asyncio.sleep(0.01)
        names = service.batches.store.list("open/batches")
    assert list(names) == [f"open/batches/{batch['id']}/record.json"]


async def test_in_a_bucket_a_batch_is_continued_by_another_instance(gcs_bucket):
    def place():
        return BucketStore(GcsLocation(gcs_bucket.name, "batches"), emulator_host=gcs_bucket.endpoint)

    async with running(place(), max_in_flight=1) as first:
        first.engine.pace_s = 0.005
        batch = await first.begin([request_line(f"n{i}") for i in range(12)])
        while len(first.engine.streams) < 5:
            await asyncio.sleep(0.001)
    async with running(place()) as second:
        done = await second.until(batch["id"], "completed")
        outputs = await second.lines_of(done["output_file_id"])
    assert outputs.keys() == {f"n{i}" for i in range(12)}
    assert len(second.engine.streams) < 12


async def test_files_whose_time_is_over_are_deleted(tmp_path):
    service = BatchService(FolderStore(tmp_path))
    kept, over = [(await service.upload(b"{}\n")).json() for _ in range(2)]
    name = f"open/files/{over['id']}/record.json"
    record = json.loads(service.batches.store.read(name)) | {"expires_at": int(time.time()) - 3601}
    service.batches.store.write(name, json.dumps(record).encode())
    assert (await service.get(f"/v1/files/{over['id']}")).status_code == 404
    assert [entry["id"] for entry in (await service.get("/v1/files")).json()["data"]] == [kept["id"]]
    service.batches.tidy()
    assert {name.split("/")[2] for name in service.batches.store.list("open/files")} == {kept["id"]}


async def test_a_batch_that_is_cancelled_while_its_record_is_read_is_cancelled(tmp_path):
    service = BatchService(FolderStore(tmp_path))
    batches, batch_id = service.batches, (await service.begin([request_line("a")]))["id"]
    [(owner, _)] = batches.queued()
    read = batches.stored(owner, batch_id)
    batches.cancel(owner, batch_id)
    batches.live[batch_id] = read
    assert batches.get(owner, batch_id).status == "cancelling"
    fields = {"models": (MODEL,), "slots": asyncio.Semaphore(1), "cancelled": asyncio.Event(), "max_line_bytes": 10_000}
    await BatchRun(read, batches, service.batches.store.claim(batch_id), service.app, **fields).run()
    assert batches.get(owner, batch_id).status == "cancelled"
    assert service.engine.streams == []


class HeldStore(FolderStore):
    """A folder in which one write of a record takes its time, and answers cannot be written."""

    def __init__(self, path):
        super().__init__(path)
        self.is_held, self.is_full = False, False
        self.waits, self.may_go, self.has_gone = threading.Event(), threading.Event(), threading.Event()

    def write(self, name, content, **options):
        if self.is_full and "/answers/" in name:
            raise OSError(28, "No space left on device")
        return super().write(name, content, **options)

    def update(self, name, change):
        if not self.is_held or not name.endswith("record.json"):
            return super().update(name, change)
        self.is_held = False
        self.waits.set()
        assert self.may_go.wait(20)
        stored = super().update(name, change)
        self.has_gone.set()
        return stored


async def test_a_record_that_is_written_late_says_nothing_of_answers_that_are_not_written(tmp_path):
    store, wait = HeldStore(tmp_path), Wait()
    service = BatchService(store, [wait, *tokens("a"), FinishReason.STOP])
    batch_id = (await service.begin([request_line("a")]))["id"]
    [(owner, _)] = service.batches.queued()
    running_one = asyncio.create_task(run_of(service, store.claim("a"), save_interval_s=0.01))
    while not service.engine.streams:
        await asyncio.sleep(0.001)
    store.is_held = True
    assert await asyncio.to_thread(store.waits.wait, 20)
    store.is_full = True
    wait.over.set()
    with pytest.raises(OSError, match="No space"):
        await running_one
    store.may_go.set()
    assert await asyncio.to_thread(store.has_gone.wait, 20)
    assert service.batches.stored(owner, batch_id).status == "in_progress"
