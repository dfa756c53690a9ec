"""A service on this machine alone, without a key, answers to its own names."""

import httpx
import pytest

from service.api.http.access_log import AccessLog
from service.observability.metrics import Metrics
from service.server.hosts import HostCheck, is_loopback
from tests.api.scripted_engine import MODEL, Service

pytestmark = pytest.mark.anyio
OWN = [
    "localhost",
    "LOCALHOST:8080",
    "127.0.0.1",
    "127.0.0.1:8080",
    "127.8.8.8",
    "[::1]:8080",
    "[::1]",
    "a.localhost:1",
]
OTHERS = [
    "evil.example",
    "evil.example:8080",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "127.0.0.1@evil.example",
    "evil.example:@127.0.0.1",
    "127.0.0.1:80:80",
    "[::1",
    "[::1]evil.example",
    "",
    "0.0.0.0",
    "192.168.1.2",
    "[fe80::1]",
]


def app_of(hosts=(), origins=()):
    return AccessLog(HostCheck(Service().fastapi, hosts=hosts, origins=origins), metrics=Metrics())


async def status(app, **headers):
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
        answer = await client.post("/v1/chat/completions", json=body, headers=headers)
        if answer.status_code != 200:
            assert answer.json()["error"]["code"] == "host_not_allowed"
        return answer.status_code


@pytest.mark.parametrize("host", OWN)
async def test_it_answers_to_the_names_of_this_machine(host):
    assert await status(app_of(), host=host) == 200
    assert await status(app_of(), host=host, origin=f"http://{host}") == 200


@pytest.mark.parametrize("host", OTHERS)
async def test_it_does_not_answer_to_other_names(host):
    assert await status(app_of(), host=host) == 403
    assert await status(app_of(), origin=f"https://{host}") == 403


@pytest.mark.parametrize("origin", ["null", "https://evil.example", "evil", "file://"])
async def test_pages_of_other_origins_may_not_ask(origin):
    assert await status(app_of(), origin=origin) == 403
    assert await status(app_of(origins=["https://evil.example"]), origin=origin) == (200 if "evil.e" in origin else 403)


@pytest.mark.parametrize(
    ("hosts", "host", "expected"),
    [
        (["chat.example.com"], "Chat.Example.com:443", 200),
        (["chat.example.com"], "a.chat.example.com", 403),
        ([".example.com"], "a.b.example.com", 200),
        ([".example.com"], "evilexample.com", 403),
        (["*"], "evil.example", 200),
    ],
)
async def test_an_operator_names_others(hosts, host, expected):
    assert await status(app_of(hosts), host=host) == expected


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
    ],
)
def test_an_address_of_this_machine_is_known(host, expected):
    assert is_loopback(host) == expected
