"""An app with files and batches over a scripted engine, and a worker that runs them."""

import asyncio
import io
import json
from contextlib import asynccontextmanager

from service.api.batch.batches import Batches
from service.api.batch.files import Files
from service.api.batch.worker import BatchWorker
from service.storage.folder_store import FolderStore
from tests.api.scripted_engine import MODEL, Service

KEY = "sk-one"
ENDPOINT = "/v1/chat/completions"


def request_line(custom_id, url=ENDPOINT, **body):
    inputs = {
        "/v1/chat/completions": {"messages": [{"role": "user", "content": custom_id}]},
        "/v1/completions": {"prompt": custom_id},
        "/v1/responses": {"input": custom_id},
    }
    whole = {"model": MODEL, **inputs.get(url, {}), **body}
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": whole})


def jsonl(lines):
    return "".join(f"{line}\n" for line in lines).encode()


class BatchService(Service):
    """A service and the worker of its batches."""

    def __init__(self, store, script=None, *, max_in_flight=4, max_bytes=10**6, max_file_bytes=10**5, **settings):
        self.batches = Batches(store, Files(store, max_bytes=max_bytes))
        super().__init__(script, batches=self.batches, max_file_bytes=max_file_bytes, **settings)
        self.worker = BatchWorker(
            self.app, self.batches, self.readiness, self.metrics, max_in_flight=max_in_flight, max_line_bytes=10_000
        )

    async def upload(self, content, headers=None, **fields):
        files = {"file": ("in.jsonl", io.BytesIO(content))}
        async with self.client(headers=headers) as client:
            return await client.post("/v1/files", files=files, data={"purpose": "batch"} | fields)

    async def begin(self, lines, headers=None, endpoint=ENDPOINT, **fields):
        """Upload lines and create their batch."""
        file_id = (await self.upload(jsonl(lines), headers)).json()["id"]
        body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": "24h"} | fields
        answer = await self.post("/v1/batches", body, headers=headers)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def get(self, path, **options):
        async with self.client() as client:
            return await client.get(path, **options)

    async def until(self, batch_id, *statuses, headers=None):
        """Wait for a batch to have one of some statuses."""
        while (batch := (await self.get(f"/v1/batches/{batch_id}", headers=headers)).json())["status"] not in statuses:
            assert batch["status"] not in ("failed", "completed", "expired", "cancelled"), batch
            await asyncio.sleep(0.01)
        return batch

    async def lines_of(self, file_id, headers=None):
        if file_id is None:
            return {}
        content = (await self.get(f"/v1/files/{file_id}/content", headers=headers)).text
        lines = [json.loads(line) for line in content.splitlines()]
        assert len({line["custom_id"] for line in lines}) == len(lines)
        return {line["custom_id"]: line for line in lines}


@asynccontextmanager
async def running(place, script=None, **options):
    """Run a service with files and batches in a folder, or in another store."""
    store = place if hasattr(place, "claim") else FolderStore(place)
    service = BatchService(store, script, **options)
    service.worker.start()
    try:
        yield service
    finally:
        await service.worker.stop()
