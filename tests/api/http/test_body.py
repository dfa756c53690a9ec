"""No body can do more than be refused."""

import pytest

from tests.api.scripted_engine import Service

pytestmark = pytest.mark.anyio

FIELD = '{"model": "org/small-chat", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 5%s}'
BOMBS = {
    "deep lists": b"[" * 200_000,
    "deep objects": b'{"a":' * 200_000,
    "deep field": (FIELD % (', "user": ' + "[" * 100_000 + "]" * 100_000)).encode(),
    "ten thousand digits": (FIELD % (', "seed": ' + "9" * 10_000)).encode(),
    "a hundred thousand fields": (FIELD % "".join(f', "k{i}": 0' for i in range(100_000))).encode(),
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
    "many wrong messages": b'{"model": "m", "messages": [' + b"1," * 200_000 + b"1]}",
}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("bomb", BOMBS)
async def test_a_body_that_is_no_request_is_a_400_in_openais_shape(path, bomb):
    service = Service()
    async with service.client() as client:
        response = await client.post(path, content=BOMBS[bomb], headers={"content-type": "application/json"})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert len(response.text) < 1000
    assert not service.engine.streams


@pytest.mark.parametrize("extra", [', "max_tokens": 6', ', "user": "a\\u0000b"', ', "stop": ["\\u0000"]'])
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
    response = await Service().chat([{"type": "canary-7f3a", "text": "canary-7f3a"}])
    assert response.status_code == 400
    assert "canary" not in response.text
