"""What ends the work of others takes no place, since that work may hold all of them."""

import pytest
from openai import AsyncOpenAI, RateLimitError

from service.api.http.request_queue import Caps
from service.server.connection import Connection
from service.storage.folder_store import FolderStore
from tests.api.batch.running import BatchService, request_line
from tests.api.scripted_engine import MODEL, STALL
from tests.api.test_stored_responses import responses_in
from tests.sockets import served

pytestmark = pytest.mark.anyio


async def test_cancel_and_delete_are_answered_while_all_places_are_taken(tmp_path):
    service = BatchService(
        FolderStore(tmp_path / "batches"),
        [STALL],
        caps=Caps(max_requests=3),
        responses=responses_in(FolderStore(tmp_path / "responses")),
    )
    batch = await service.begin([request_line("a")])
    with served(service.app, Connection) as server:
        host, port = server.address
        async with AsyncOpenAI(api_key="none", base_url=f"http://{host}:{port}/v1", max_retries=0) as client:
            made = [await client.responses.create(model=MODEL, input="hi", background=True) for _ in range(3)]
            with pytest.raises(RateLimitError):
                await client.responses.create(model=MODEL, input="hi")
            assert (await client.batches.cancel(batch["id"])).status == "cancelling"
            assert (await client.responses.cancel(made[0].id)).status == "cancelled"
            await client.responses.delete(made[1].id)
            await client.responses.cancel(made[2].id)


async def test_what_only_looks_like_a_cancel_takes_a_place(tmp_path):
    service = BatchService(FolderStore(tmp_path), caps=Caps(max_requests=0))
    paths = ("/v1/responses", "/v1/responses/cancel", "/v1/batches", "/v1/responses/a/b/cancel", "/v1/chat/completions")
    answers = [await service.post(path, {}) for path in paths]
    assert {answer.status_code for answer in answers} == {429}
    assert (await service.post("/v1/batches/batch_0/cancel")).status_code == 404
