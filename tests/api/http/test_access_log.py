import json
import logging

import pytest

from service.observability.logs import current_trace
from tests.api.scripted_engine import Service

pytestmark = pytest.mark.anyio

TRACE = "0123456789abcdef0123456789abcdef"


def lines(caplog):
    return [vars(record) for record in caplog.records if record.getMessage() == "request"]


async def test_a_request_is_one_line_with_its_numbers_and_without_its_words(caplog):
    caplog.set_level(logging.DEBUG)
    response = await Service().chat("canary-prompt", user="ada\n\x1b[31mroot")
    (line,) = lines(caplog)
    assert (line["route"], line["method"], line["status"]) == ("/v1/chat/completions", "POST", 200)
    assert line["completion_tokens"] > 0
    assert line["prompt_tokens"] > 0
    assert line["latency_s"] > 0
    assert line["finish_reason"] == "stop"
    assert line["user"] == "ada??[31mroot"
    assert line["request_id"] == response.headers["x-request-id"]
    text = json.dumps([vars(record) for record in caplog.records], default=str)
    assert "canary-prompt" not in text
    assert "Hello world" not in text


async def test_a_refused_request_is_logged_with_its_code_and_without_its_words(caplog):
    caplog.set_level(logging.DEBUG)
    await Service(api_keys=("key",)).chat("canary-prompt")
    await Service().chat("canary-prompt", temperature=99)
    assert [(line["status"], line["error_code"]) for line in lines(caplog)] == [
        (401, "invalid_api_key"),
        (400, "invalid_value"),
    ]
    assert "canary-prompt" not in caplog.text


async def test_probes_are_not_worth_a_line(caplog):
    caplog.set_level(logging.INFO)
    async with Service().client() as client:
        await client.get("/health/ready")
    assert not lines(caplog)


@pytest.mark.parametrize(
    ("given", "is_kept"), [("abc-1.2_3", True), ("", False), ("a b", False), ("a" * 129, False), ("{}", False)]
)
async def test_a_clients_request_id_is_kept_if_it_is_harmless(given, is_kept):
    async with Service().client() as client:
        response = await client.get("/health", headers={"x-request-id": given})
    assert (response.headers["x-request-id"] == given) is is_kept


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("x-cloud-trace-context", f"{TRACE}/123;o=1", f"projects/p/traces/{TRACE}"),
        ("traceparent", f"00-{TRACE}-0123456789abcdef-01", f"projects/p/traces/{TRACE}"),
        ("traceparent", "00-bad", None),
        ("x-cloud-trace-context", f"{TRACE}0\n", None),
    ],
)
async def test_the_trace_of_the_front_end_is_the_trace_of_the_log(name, value, expected):
    service = Service(project_id="p")
    seen = []
    progress = service.readiness.progress
    service.readiness.progress = lambda: (seen.append(current_trace.get()), progress())[1]
    async with service.client() as client:
        await client.get("/health", headers={name: value.encode()})
    assert seen == [expected]
    assert current_trace.get() is None


async def test_an_unexpected_failure_is_a_500_with_an_id_and_no_detail(caplog):
    service = Service()
    service.readiness.error = ValueError("/secret/path 0xdeadbeef")
    async with service.client() as client:
        response = await client.get("/v1/models")
    error = response.json()["error"]
    assert response.status_code == 500
    assert error["code"] == "internal_error"
    assert response.headers["x-request-id"] in error["message"]
    assert "secret" not in response.text
    assert "0xdeadbeef" in caplog.text  # the operator sees it


@pytest.mark.parametrize(
    ("fields", "user"),
    [({"user": "one"}, "one"), ({"safety_identifier": "two"}, "two"), ({"user": "a", "safety_identifier": "b"}, "b")],
)
async def test_the_clients_user_is_in_the_line_by_either_of_its_names(fields, user, caplog):
    caplog.set_level("INFO", "service.api.http.access_log")
    assert (await Service().chat(**fields, prompt_cache_key="chats")).status_code == 200
    [line] = [record for record in caplog.records if record.message == "request"]
    assert line.user == user
