import asyncio

import pytest

from tests.api.scripted_engine import MODEL, Service

pytestmark = pytest.mark.anyio

JSON = {"content-type": "application/json"}


async def post(content, headers=JSON, **settings):
    service = Service(max_body_bytes=2000, **settings)
    async with service.client() as client:
        return await client.post("/v1/completions", content=content, headers=headers)


async def chunks(count, size=100):
    for _ in range(count):
        yield b" " * size


async def test_a_body_that_says_it_is_too_large_is_refused_unread():
    response = await post(b"{}", JSON | {"content-length": str(10**12)})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (413, "request_too_large")
    assert "2000 bytes" in error["message"]
    assert response.headers["connection"] == "close"


async def test_a_chunked_body_is_counted():
    response = await post(chunks(1000))
    assert response.status_code == 413


async def test_a_body_of_just_the_limit_is_read():
    content = f'{{"model": "{MODEL}", "prompt": "a"}}'.encode()
    assert (await post(content.ljust(2000))).status_code == 200
    assert (await post(content.ljust(2001))).status_code == 413


@pytest.mark.parametrize("length", ["-1", "x", "9" * 30])
async def test_a_length_that_is_no_length_is_refused(length):
    assert (await post(b"{}", JSON | {"content-length": length})).status_code == 413


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "json"])
async def test_only_json_is_read(kind):
    response = await post(b"{}", {"content-type": kind})
    assert (response.status_code, response.json()["error"]["code"]) == (415, "unsupported_media_type")


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate, identity"])
async def test_nothing_is_decompressed(encoding):
    assert (await post(b"{}", JSON | {"content-encoding": encoding})).status_code == 415


async def test_a_body_that_does_not_come_is_given_up():
    async def slow():
        yield b"{"
        await asyncio.Event().wait()

    response = await post(slow(), body_timeout_s=0.05)
    assert (response.status_code, response.json()["error"]["code"]) == (408, "request_timeout")
