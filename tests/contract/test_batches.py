"""Files and batches with the official client, in one process."""

import io
import json

import openai
import pytest

from tests.api.batch.running import ENDPOINT, jsonl, request_line, running

pytestmark = pytest.mark.anyio

KEY = "sk-contract"


def client_of(service):
    return openai.AsyncOpenAI(api_key=KEY, base_url="http://test/v1", http_client=service.client(), max_retries=0)


async def upload(client, lines, **fields):
    return await client.files.create(file=("in.jsonl", io.BytesIO(jsonl(lines))), purpose="batch", **fields)


async def test_a_batch_goes_from_upload_to_results(tmp_path):
    async with running(tmp_path, api_keys=(KEY,)) as service, client_of(service) as client:
        lines = [request_line("a"), request_line("b", temperature=5)]
        file = await upload(client, lines, expires_after={"anchor": "created_at", "seconds": 7200})
        assert (file.object, file.purpose, file.status) == ("file", "batch", "processed")
        assert file.expires_at == file.created_at + 7200
        batch = await client.batches.create(
            input_file_id=file.id,
            endpoint=ENDPOINT,
            completion_window="24h",
            metadata={"run": "nightly"},
            output_expires_after={"anchor": "created_at", "seconds": 3600},
        )
        assert (batch.object, batch.status, batch.metadata) == ("batch", "validating", {"run": "nightly"})
        while batch.status in ("validating", "in_progress", "finalizing"):
            batch = await client.batches.retrieve(batch.id)
        assert batch.status == "completed"
        assert (batch.request_counts.total, batch.request_counts.completed, batch.request_counts.failed) == (2, 1, 1)
        assert batch.usage.total_tokens == batch.usage.input_tokens + batch.usage.output_tokens > 0
        output = json.loads((await client.files.content(batch.output_file_id)).text)
        assert output["response"]["body"]["choices"][0]["message"]["content"] == "Hello world"
        error = json.loads((await client.files.content(batch.error_file_id)).text)
        assert error["response"]["body"]["error"]["param"] == "temperature"
        assert [found.id async for found in client.batches.list(limit=1)] == [batch.id]


async def test_a_file_that_is_wrong_fails_its_batch_with_errors_by_line(tmp_path):
    async with running(tmp_path, api_keys=(KEY,)) as service, client_of(service) as client:
        file = await upload(client, ["{", request_line("a", model="other")])
        batch = await client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
        while batch.status == "validating":
            batch = await client.batches.retrieve(batch.id)
    assert batch.status == "failed"
    assert [(error.line, error.code) for error in batch.errors.data] == [
        (1, "invalid_json_line"),
        (2, "model_not_found"),
    ]


async def test_a_batch_is_cancelled(tmp_path):
    async with running(tmp_path, max_in_flight=1, api_keys=(KEY,)) as service, client_of(service) as client:
        service.engine.pace_s = 0.05
        file = await upload(client, [request_line(f"n{i}") for i in range(20)])
        batch = await client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
        batch = await client.batches.cancel(batch.id)
        assert batch.status in ("cancelling", "cancelled")
        while batch.status == "cancelling":
            batch = await client.batches.retrieve(batch.id)
        assert batch.status == "cancelled"
        with pytest.raises(openai.BadRequestError):
            await client.batches.cancel(batch.id)


async def test_files_are_listed_retrieved_and_deleted(tmp_path):
    async with running(tmp_path, api_keys=(KEY,)) as service, client_of(service) as client:
        ids = [(await upload(client, ["{}"])).id for _ in range(5)]
        assert [file.id async for file in client.files.list(purpose="batch", limit=2, order="asc")] == ids
        assert [file.id async for file in client.files.list(after=ids[2])] == ids[1::-1]
        assert (await client.files.retrieve(ids[0])).filename == "in.jsonl"
        assert (await client.files.delete(ids[0])).deleted
        with pytest.raises(openai.NotFoundError):
            await client.files.retrieve(ids[0])
        with pytest.raises(openai.BadRequestError) as refusal:
            await client.files.create(file=b"{}", purpose="assistants")
    assert refusal.value.param == "purpose"
