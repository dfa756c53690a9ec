import json
import logging

import pytest

from service.observability.trace_context import TraceContext, current_trace
from tests.api.scripted_engine import MODEL, Service

pytestmark = pytest.mark.anyio

TRACE = "0123456789abcdef0123456789abcdef"
OTHER, SPAN = "f" * 32, "00f067aa0ba902b7"


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
        await client.get("/metrics")
    assert not lines(caplog)


@pytest.mark.parametrize(
    ("given", "is_kept"), [("abc-1.2_3", True), ("", False), ("a b", False), ("a" * 129, False), ("{}", False)]
)
async def test_a_clients_request_id_is_kept_if_it_is_harmless(given, is_kept):
    async with Service().client() as client:
        response = await client.get("/health", headers={"x-request-id": given})
    assert (response.headers["x-request-id"] == given) is is_kept


@pytest.mark.parametrize(
    ("headers", "trace", "span", "is_sampled"),
    [
        ({"x-cloud-trace-context": f"{TRACE}/123;o=1"}, TRACE, "000000000000007b", True),
        ({"x-cloud-trace-context": f"{TRACE}/0"}, TRACE, None, False),
        ({"traceparent": f"00-{TRACE}-{SPAN}-01"}, TRACE, SPAN, True),
        ({"traceparent": f"00-{OTHER}-{SPAN}-00", "x-cloud-trace-context": f"{TRACE}/1;o=1"}, OTHER, SPAN, False),
        ({"traceparent": "00-bad", "x-cloud-trace-context": f"{TRACE}/1"}, TRACE, "0000000000000001", False),
    ],
)
async def test_the_trace_of_the_front_end_is_the_trace_of_the_log(headers, trace, span, is_sampled):
    service = Service()
    seen = []
    progress = service.readiness.progress
    service.readiness.progress = lambda: (seen.append(current_trace.get()), progress())[1]
    async with service.client() as client:
        await client.get("/health", headers=headers)
    assert seen == [TraceContext(trace, span, is_sampled)]
    assert current_trace.get() is None


async def test_the_line_says_what_cloud_logging_and_operators_ask(caplog):
    caplog.set_level(logging.INFO)
    async with Service().client() as client:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "stream": True}
        response = await client.post(
            "/v1/chat/completions?key=canary", json=body, headers={"user-agent": "curl/8\n" + "x" * 999}
        )
    (line,) = lines(caplog)
    request = line["http_request"]
    assert (request["requestMethod"], request["requestUrl"], request["status"]) == ("POST", "/v1/chat/completions", 200)
    assert request["responseSize"] == str(len(response.content))
    assert request["requestSize"] == str(len(response.request.content))
    assert request["latency"].endswith("s")
    assert float(request["latency"][:-1]) > 0
    assert len(request["userAgent"]) == 256
    assert (line["model"], line["stream"], line["cached_tokens"]) == (MODEL, True, 0)
    times_s = [line[name] for name in ("queue_s", "time_to_first_token_s", "time_per_output_token_s", "latency_s")]
    assert all(0 <= time_s <= line["latency_s"] for time_s in times_s)
    assert times_s[0] <= times_s[1]
    assert "canary" not in str(line)


async def test_refusals_are_counted_by_their_code():
    service = Service(api_keys=("key",))
    await service.chat("hi")
    await service.chat("hi")
    assert 'levserve_request_refusals_total{reason="invalid_api_key"} 2.0' in service.metrics.exposition().decode()


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
