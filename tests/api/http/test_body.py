"""A body of any size, speed and content is read or refused."""

import asyncio

import pytest

from tests.api.scripted_engine import MODEL, Service

pytestmark = pytest.mark.anyio

JSON = {"content-type": "application/json"}
FIELD = '{"model": "org/small-chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5%s}'
BOMBS = {
    "deep lists": b"[" * 200_000,
    "deep objects": b'{"a":' * 200_000,
    "deep field": (FIELD % (', "user": ' + "[" * 100_000 + "]" * 100_000)).encode(),
    "ten thousand digits": (FIELD % (', "seed": ' + "9" * 10_000)).encode(),
    "two hundred thousand fields": (FIELD % "".join(f', "k{i}": 0' for i in range(200_000))).encode(),
    "NaN": (FIELD % ', "temperature": NaN').encode(),
    "1e999": (FIELD % ', "temperature": 1e999').encode(),
    "half a surrogate pair": (FIELD % ', "user": "\\ud800"').encode(),
    "UTF-16": (FIELD % "").encode("utf-16"),
    "bad UTF-8": b'{"model": "\xff"}',
    "a byte order mark": b"\xef\xbb\xbf{}",
    "nothing": b"",
    "a comma too much": b'{"a": 1,}',
    "a list": b"[]",
    "a text": b'"a"',
    "null": b"null",
    "a broken end": b'{"model": "m"',
    "a bad name": b'{"\x00": 1}',
    "a name twice": (FIELD % ', "max_tokens": 6').encode(),
    "a name twice in a message": FIELD.replace("hi", 'hi", "content": "ho').encode() % b"",
    "many wrong messages": b'{"model": "m", "messages": [' + b"1," * 200_000 + b"1]}",
}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("bomb", BOMBS)
async def test_a_body_that_is_not_a_request_is_a_400_in_openais_shape(path, bomb):
    service = Service()
    async with service.client() as client:
        response = await client.post(path, content=BOMBS[bomb], headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert len(response.text) < 1000
    assert not service.engine.streams


@pytest.mark.parametrize("extra", [', "user": "a\\u0000b"', ', "stop": ["\\u0000"]'])
async def test_odd_but_whole_bodies_are_answered(extra):
    service = Service()
    async with service.client() as client:
        response = await client.post(
            "/v1/chat/completions", content=FIELD % extra, headers={"content-type": "application/json; charset=utf-8"}
        )
    assert response.status_code == 200


async def test_a_missing_field_is_named():
    error = (await Service().post("/v1/completions", {"model": "org/small-chat"})).json()["error"]
    assert (error["param"], error["code"]) == ("prompt", "missing_required_parameter")


async def test_a_refusal_does_not_quote_the_prompt():
    response = await Service().chat([{"type": "text", "text": {"canary-7f3a": "canary-7f3a"}}])
    assert response.status_code == 400
    assert "canary" not in response.text


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
async def test_an_invalid_length_is_refused(length):
    assert (await post(b"{}", JSON | {"content-length": length})).status_code == 413


@pytest.mark.parametrize("kind", ["multipart/form-data", "json", "application/xml"])
async def test_only_json_is_read(kind):
    response = await post(b"{}", {"content-type": kind})
    assert (response.status_code, response.json()["error"]["code"]) == (415, "unsupported_media_type")


UNSTATED = ["text/plain", "application/x-www-form-urlencoded", "application/octet-stream", ""]


@pytest.mark.parametrize("kind", [*UNSTATED, "application/json; charset=utf-8"])
async def test_json_of_a_client_that_does_not_name_it_is_read(kind):
    content = f'{{"model": "{MODEL}", "prompt": "a"}}'.encode()
    assert (await post(content, {"content-type": kind})).status_code == 200


@pytest.mark.parametrize("kind", UNSTATED)
async def test_a_page_of_another_origin_cannot_send_a_body_without_asking_first(kind):
    response = await post(b"{}", {"content-type": kind, "origin": "https://example.org"})
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
