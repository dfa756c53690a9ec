"""What a request asks for in vain is said: in the answer's header, the log line and a metric, and nowhere else."""

import json
import logging

import httpx
import pytest

from service.api.http.ignored import MAX_NAMED
from service.server.connection import Connection
from tests.api.scripted_engine import MODEL, Service
from tests.sockets import served

pytestmark = pytest.mark.anyio

HEADER = "x-levserve-ignored"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi", "cache_control": {"type": "ephemeral"}}]}
IGNORED = CHAT | {"service_tier": "flex", "mood": "good"}
NAMES = "messages[].cache_control, service_tier, mood"
LONG = [{"role": "user", "content": "a " * 40_000, "name": "a"}]


def count(service, field):
    return service.metrics.registry.get_sample_value("levserve_ignored_fields_total", {"field": field})


@pytest.mark.parametrize("stream", [False, True])
async def test_header_log_and_metric_name_the_ignored_fields(caplog, stream):
    service = Service()
    with caplog.at_level(logging.INFO, "service.api.http.access_log"):
        answer = await service.post("/v1/chat/completions", IGNORED | {"stream": stream})
    assert (answer.status_code, answer.headers[HEADER]) == (200, NAMES)
    [line] = [record for record in caplog.records if record.message == "request"]
    assert line.ignored == NAMES
    assert count(service, "messages[].cache_control") == count(service, "service_tier") == 1
    assert count(service, "unknown") == 1
    assert count(service, "mood") is None  # clients choose such names


async def test_an_answer_that_honoured_all_says_nothing(caplog):
    service = Service()
    with caplog.at_level(logging.INFO, "service.api.http.access_log"):
        answer = await service.post(
            "/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
        )
    assert HEADER not in answer.headers
    assert not any(hasattr(record, "ignored") for record in caplog.records)


async def test_a_refusal_names_the_ignored_fields_too():
    answer = await Service().post("/v1/chat/completions", IGNORED | {"model": "no-such-model"})
    assert (answer.status_code, answer.headers[HEADER]) == (404, NAMES)


async def test_a_long_body_is_told_the_same():
    answer = await Service().post(
        "/v1/chat/completions", IGNORED | {"messages": [*CHAT["messages"], *LONG], "truncate_prompt_tokens": 9}
    )
    assert (answer.status_code, answer.headers[HEADER]) == (200, NAMES)


async def test_many_ignored_fields_are_cut_and_counted():
    answer = await Service().post("/v1/chat/completions", CHAT | {f"field_{i}": 1 for i in range(300)})
    names = answer.headers[HEADER].split(", ")
    assert (answer.status_code, len(names), names[-1]) == (200, MAX_NAMED + 1, f"and {301 - MAX_NAMED} more")


@pytest.mark.parametrize("name", ["a, b", "ä\n", "a\r\nset-cookie: b", "\u2028", "x" * 10_000, ""])
async def test_a_clients_name_does_not_break_the_header(name):
    answer = await Service().post("/v1/chat/completions", CHAT | {name: 1})
    told = answer.headers[HEADER].removeprefix("messages[].cache_control, ")
    assert answer.status_code == 200
    assert (len(told), told.isascii(), "," in told) == (len(name[:64]) or 2, True, False)
    assert "set-cookie" not in answer.headers


def test_a_field_without_a_name_is_told_over_a_socket():
    with served(Service().app, Connection) as server:
        host, port = server.address
        answer = httpx.post(f"http://{host}:{port}/v1/chat/completions", json={**CHAT, "": 1})
    assert (answer.status_code, answer.headers[HEADER]) == (200, 'messages[].cache_control, ""')


async def test_an_unknown_field_may_be_large():
    answer = await Service().post("/v1/chat/completions", CHAT | {"notes": "a" * 10**6, "tree": [[[{}]]] * 1000})
    assert (answer.status_code, answer.headers[HEADER]) == (200, "messages[].cache_control, notes, tree")


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"mood": 1}, "unknown_parameter", "mood"),
        ({"service_tier": "flex"}, "unsupported_parameter", "service_tier"),
        ({"max_tokens": 10**9}, "unsupported_parameter", "max_tokens"),
        ({"reasoning_effort": "low"}, "unsupported_parameter", "reasoning_effort"),
        (CHAT, "unsupported_parameter", "messages[0].cache_control"),
    ],
)
async def test_strict_fields_refuse_what_would_be_ignored(fields, code, param):
    service = Service(strict_fields=True)
    plain = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    assert (await service.post("/v1/chat/completions", plain)).status_code == 200
    answer = await service.post("/v1/chat/completions", plain | fields)
    error = json.loads(answer.content)["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, code, param)
    assert HEADER not in answer.headers
