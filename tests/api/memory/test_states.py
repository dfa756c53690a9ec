"""States of responses and batches in a folder: whoever is first, whatever write fails."""

import asyncio
import itertools

import pytest
from openai import InternalServerError

from service.api.memory.store import new_id_prefix
from service.storage import folder_store
from service.storage.folder_store import FolderStore
from tests.api.batch.running import jsonl, request_line, running
from tests.api.scripted_engine import MODEL
from tests.api.test_stored_responses import HELLO, RememberingService, at_a_port, missing, responses_in, script_of

pytestmark = pytest.mark.anyio

OWNER = "open"


def document(response_id, status):
    return {"id": response_id, "status": status, "background": True, "output": []}


@pytest.mark.parametrize("end", ["cancel", "delete"])
async def test_whoever_is_first_what_was_cancelled_or_deleted_stays_so(tmp_path, end):
    maker, other = responses_in(FolderStore(tmp_path)), responses_in(FolderStore(tmp_path))
    steps = ("in_progress", "completed", end)
    for number, order in enumerate(itertools.permutations(steps)):
        response_id = f"{new_id_prefix()}{number:032x}"
        claim = await maker.claim(OWNER, response_id)
        await maker.write(OWNER, document(response_id, "queued"), b"")
        told = None
        for step in order:
            if step == "cancel":
                told = await other.cancel(OWNER, response_id, None)
            elif step == "delete":
                await other.delete(OWNER, response_id)
            else:
                await maker.write(OWNER, document(response_id, step), b"", is_new=False)
        for store in (maker, other):
            kept = await store.read(OWNER, response_id)
            assert kept is None if end == "delete" else kept.response == told
        if order[0] == "cancel":
            assert told["status"] == "cancelled"
        await maker.release(claim)


class FullDisk:
    """A disk that is full at one write, or from it on."""

    def __init__(self, monkeypatch):
        self.left, self.fails = None, 0
        self._sync = folder_store.sync
        monkeypatch.setattr(folder_store, "sync", self)

    def fill_at(self, number, *, times=1):
        self.left, self.fails = number, times

    def __call__(self, path):
        if self.left is not None:
            self.left -= 1
            if self.left < 0 and self.fails:
                self.fails -= 1
                raise OSError(28, "No space left on device")
        self._sync(path)


@pytest.mark.slow
async def test_a_disk_that_is_full_at_any_write_of_a_response_refuses_it_or_leaves_it_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("service.api.memory.memory.RETRY_INTERVAL_S", 0.01)
    disk, service = FullDisk(monkeypatch), RememberingService(tmp_path)
    other = RememberingService(FolderStore(tmp_path)).api().responses
    num_kept = 0
    async with at_a_port(service) as api:
        for number in range(8):
            service.engine.script = script_of(HELLO)
            disk.fill_at(number)
            try:
                made = await api.create(model=MODEL, input="hi", background=True)
            except InternalServerError:
                continue
            while service.responses.live:
                await asyncio.sleep(0.005)
            disk.left = None
            kept = await other.retrieve(made.id)
            assert (kept.status, kept.output_text) == ("completed", HELLO)
            disk.fill_at(0)
            with pytest.raises(InternalServerError):
                await other.delete(made.id)
            assert (await api.retrieve(made.id)).to_dict() == kept.to_dict()
            await other.delete(made.id)
            await missing(api.retrieve(made.id))
            num_kept += 1
    assert num_kept > 4
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.slow
async def test_a_disk_that_is_full_at_any_write_of_a_batch_refuses_it_or_leaves_it_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("service.api.batch.worker.LOOK_INTERVAL_S", 0.02)
    disk, ended = FullDisk(monkeypatch), 0
    names = ["a", "b", "c"]
    async with running(tmp_path, script_of(HELLO)) as service:
        for number in range(24):
            disk.fill_at(number)
            uploaded = await service.upload(jsonl([request_line(name) for name in names]))
            if uploaded.status_code == 503:
                continue
            body = {"input_file_id": uploaded.json()["id"], "endpoint": "/v1/chat/completions"}
            created = await service.post("/v1/batches", body | {"completion_window": "24h"})
            if created.status_code == 503:
                continue
            done = await service.until(created.json()["id"], "completed")
            assert (await service.lines_of(done["output_file_id"])).keys() == set(names)
            assert done["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
            ended += 1
    assert ended > 12
    assert not list(tmp_path.rglob("*.part"))
