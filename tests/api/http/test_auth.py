import pytest

from tests.api.scripted_engine import Service

pytestmark = pytest.mark.anyio

KEY = "sk-first-key"


async def status(path="/v1/models", headers=(), method="GET", **settings):
    service = Service(api_keys=(KEY, "sk-zweiter-schlüssel"), **settings)
    async with service.client() as client:
        response = await client.request(method, path, headers=list(headers))
    return response.status_code


@pytest.mark.parametrize(
    "value",
    [b"Bearer sk-first-key", b"bearer sk-first-key", b"BEARER  sk-first-key ", "Bearer sk-zweiter-schlüssel".encode()],
)
async def test_any_of_the_keys_opens(value):
    assert await status(headers=[(b"authorization", value)]) == 200


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"Bearer",
        b"Bearer ",
        b"Bearer sk-first-ke",
        b"Bearer sk-first-keyy",
        b"Bearer SK-FIRST-KEY",
        b"Basic sk-first-key",
        b"sk-first-key",
        b"Bearer sk-first-key,sk-zweiter",
        b"Bearer \xff\xfe\x00",
        "Bearer ключ".encode(),
        b"Bearer " + b"a" * 1_000_000,
    ],
)
async def test_anything_else_does_not(value):
    assert await status(headers=[(b"authorization", value)]) == 401


async def test_two_headers_do_not_open_even_if_one_is_right():
    right = (b"authorization", b"Bearer sk-first-key")
    assert await status(headers=[right, (b"authorization", b"Bearer x")]) == 401
    assert await status(headers=[right, right]) == 401


async def test_the_answer_says_what_is_missing_in_openais_shape():
    service = Service(api_keys=(KEY,))
    async with service.client() as client:
        missing = await client.get("/v1/models")
        wrong = await client.get("/v1/models", headers={"authorization": "Bearer canary-key"})
    assert missing.json()["error"] == {
        "message": "You didn't provide an API key. Send it as 'Authorization: Bearer YOUR_KEY'.",
        "type": "invalid_request_error",
        "param": None,
        "code": "invalid_api_key",
    }
    assert missing.headers["www-authenticate"] == "Bearer"
    assert "Incorrect API key" in wrong.text
    assert "canary" not in wrong.text


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([(b"x-api-key", b"sk-first-key")], 200),
        ([(b"x-api-key", b" sk-first-key ")], 200),
        ([(b"x-api-key", b"sk-first-key"), (b"authorization", b"Bearer sk-first-key")], 200),
        ([(b"x-api-key", b"sk-first-key"), (b"authorization", "Bearer sk-zweiter-schlüssel".encode())], 401),
        ([(b"x-api-key", b"sk-first-key"), (b"authorization", b"Basic sk-first-key")], 401),
        ([(b"x-api-key", b"sk-first-key"), (b"x-api-key", b"sk-first-key")], 401),
        ([(b"x-api-key", b"Bearer sk-first-key")], 401),
        ([(b"x-api-key", b"sk-first-keyy")], 401),
        ([(b"x-api-key", b"")], 401),
    ],
)
async def test_anthropics_header_opens_like_the_other_and_not_beside_another_key(headers, expected):
    assert await status(headers=headers) == expected


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready", "/healthz"])
async def test_health_is_open(path):
    assert await status(path) == 200


async def test_without_keys_everything_is_open():
    service = Service()
    async with service.client() as client:
        assert (await client.get("/v1/models")).status_code == 200


async def test_a_websocket_is_refused_before_its_handshake():
    sent = []

    async def send(message):
        sent.append(message)

    scope = {"type": "websocket", "path": "/v1/realtime", "headers": [], "query_string": b"", "subprotocols": []}
    await Service(api_keys=(KEY,)).app(scope, None, send)
    assert [message["type"] for message in sent] == ["websocket.close"]
