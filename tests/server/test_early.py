"""Answers before the API is imported: health, early requests and statistics."""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from service.api.http.keys import ApiKeys, plain_keys
from service.api.http.request_queue import Caps
from service.errors import NotReady
from service.observability.logs import CloudJsonFormatter, Origin
from service.observability.metrics import Metrics
from service.server.connection import Connection
from tests.api.scripted_engine import MODEL, Service
from tests.server.early_app import early_app
from tests.sockets import body_from, connected, read_to_end, refusal, served, wait_until

ROOT = Path(__file__).parents[2]


class StartingService:
    """A start whose steps a test takes."""

    def __init__(self) -> None:
        self.api = None
        self.is_live = True
        self.is_ready = self.is_draining = False
        self.status = "starting"
        self.num_early = 0
        self.decided = asyncio.Event()

    def progress(self):
        return {"phase": "weights", "seconds": 1.5}

    def served_model(self):
        raise NotReady(self.summary())

    def summary(self):
        return "weights after 2 s, 5 of 10 bytes pulled"

    def stats(self):
        return {"compiles": 0}


async def echo(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"from the api"})


@pytest.fixture
def service():
    return StartingService()


async def ask(app, path, method="GET", headers=()):
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.disconnect"}

    await app({"type": "http", "method": method, "path": path, "headers": list(headers)}, receive, send)
    start, body = sent
    return start["status"], {k.decode(): v.decode() for k, v in start["headers"]}, body["body"]


def test_health_is_answered_and_all_else_gets_503_with_a_time_to_retry(service):
    app = early_app(service, Metrics())
    assert asyncio.run(ask(app, "/health/live"))[0] == 200
    for path in ("/health", "/health/ready", "/healthz"):
        status, headers, body = asyncio.run(ask(app, path))
        assert (status, headers["retry-after"]) == (503, "2")
        assert json.loads(body) == {"status": "starting", "phase": "weights", "seconds": 1.5}
    status, headers, body = asyncio.run(ask(app, "/v1/chat/completions", "POST"))
    error = json.loads(body)["error"]
    assert (status, error["code"], error["type"], error["param"]) == (503, "not_ready", "server_error", None)
    assert "5 of 10 bytes pulled" in error["message"]
    assert int(headers["retry-after"]) > 0
    assert headers["x-request-id"].startswith("req_")


def test_an_early_refusal_of_anthropics_route_has_anthropics_shape(service):
    keys = ApiKeys(plain_keys(["sk-1"]))
    app = early_app(service, Metrics(), keys=keys, max_waiting=1, wait_s=5.0)
    for path, status, kind in (("/v1/messages", 401, "authentication_error"), ("/health/ready", 503, None)):
        stated, headers, body = asyncio.run(ask(app, path, "POST"))
        assert (stated, json.loads(body).get("error", {}).get("type")) == (status, kind)
    starting = early_app(service, Metrics())
    status, headers, body = asyncio.run(ask(starting, "/v1/messages/count_tokens", "POST"))
    error = json.loads(body)
    assert (status, error["type"], error["error"]["type"]) == (503, "error", "overloaded_error")
    assert error["error"]["details"]["error_code"] == "not_ready"
    assert error["request_id"] == headers["request-id"] == headers["x-request-id"]


def test_the_line_of_an_early_refusal_has_the_callers_trace_and_request_id(service, caplog):
    caplog.handler.setFormatter(CloudJsonFormatter(Origin()))
    caplog.set_level("INFO", "service.api.http.access_log")
    trace = f"00-{'a' * 32}-{'b' * 16}-01".encode()
    headers = [(b"traceparent", trace), (b"x-request-id", b"mine-1")]
    _, sent, _ = asyncio.run(ask(early_app(service, Metrics()), "/v1/models", headers=headers))
    line = json.loads(caplog.text)
    assert (sent["x-request-id"], line["request_id"], line["error_code"]) == ("mine-1", "mine-1", "not_ready")
    assert line["logging.googleapis.com/trace"] == "a" * 32
    assert line["logging.googleapis.com/spanId"] == "b" * 16


def test_a_drain_refuses_new_requests_and_their_connections_and_answers_probes(service):
    service.api, service.is_draining = echo, True
    service.decided.set()
    app = early_app(service, Metrics())
    status, headers, body = asyncio.run(ask(app, "/v1/models"))
    assert (status, json.loads(body)["error"]["code"]) == (503, "shutting_down")
    assert headers["connection"] == "close"
    assert asyncio.run(ask(app, "/health/live"))[2] == b"from the api"


def test_a_failed_service_is_not_live(service):
    service.is_live = False
    assert asyncio.run(ask(early_app(service, Metrics()), "/health/live"))[0] == 503


def test_a_head_request_has_the_length_and_no_body(service):
    status, headers, body = asyncio.run(ask(early_app(service, Metrics()), "/health/live", "HEAD"))
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) > 0


def test_without_metrics_only_their_route_is_gone(service):
    service.api = echo
    app = early_app(service, Metrics(), has_metrics=False)
    status, _, body = asyncio.run(ask(app, "/metrics"))
    assert (status, json.loads(body)["error"]["message"]) == (404, "There is no such route: ENABLE_METRICS is false.")
    assert asyncio.run(ask(app, "/health/live"))[2] == b"from the api"


def test_once_the_api_is_there_everything_goes_to_it(service):
    service.api = echo
    for path in ("/health/live", "/v1/models", "/metrics", "/administration"):
        assert asyncio.run(ask(early_app(service, Metrics()), path))[2] == b"from the api"


def test_an_early_request_waits_until_the_model_is_there(service):
    app = early_app(service, Metrics(), max_waiting=1, wait_s=10.0)

    async def main():
        first = asyncio.create_task(ask(app, "/v1/models"))
        await asyncio.sleep(0.05)
        assert not first.done()
        assert (await ask(app, "/v1/models"))[0] == 503  # one too many
        assert (await ask(app, "/health/live"))[0] == 200
        assert service.num_early == 1
        service.api = echo
        service.decided.set()
        assert (await first)[2] == b"from the api"
        assert service.num_early == 0

    asyncio.run(main())


def test_the_wait_has_an_end(service):
    app = early_app(service, Metrics(), max_waiting=1, wait_s=0.05)
    assert asyncio.run(ask(app, "/v1/models"))[0] == 504


def test_a_wait_counts_towards_the_time_that_a_request_may_wait(service):
    app = early_app(service, Metrics(), max_waiting=1, wait_s=60.0, queue_timeout_s=0.05)
    with served(app, Connection) as server, connected(server) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n")
        status, error = refusal(read_to_end(client))
    assert (status, error["code"]) == (503, "queue_timeout")
    assert "QUEUE_TIMEOUT = 0.05 s" in error["message"]


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"request_timeout_s": 0.2}, "timeout"),
        ({"caps": Caps(queue_timeout_s=0.2)}, "queue_timeout"),
    ],
)
def test_the_wait_does_not_begin_a_requests_time_anew(service, settings, code):
    api = Service(**settings)
    app = early_app(service, Metrics(), max_waiting=1, wait_s=60.0)
    body = json.dumps({"model": MODEL, "prompt": "Once"}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with served(app, Connection) as server, connected(server) as client:
        client.sendall(head % len(body) + body)
        wait_until(lambda: server.server_state.tasks)
        time.sleep(0.25)
        service.api = api.fastapi
        server.loop.call_soon_threadsafe(service.decided.set)
        error = json.loads(body_from(client))["error"]
    assert error["code"] == code


def test_nothing_waits_without_a_key_at_a_socket(service):
    app = early_app(service, Metrics(), keys=ApiKeys(plain_keys(["key"])), max_waiting=1, wait_s=60.0)
    with served(app, Connection) as server, connected(server) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n")
        status, error = refusal(read_to_end(client))
    assert (status, error["code"]) == (401, "invalid_api_key")


def test_nothing_waits_without_a_key(service):
    app = early_app(service, Metrics(), keys=ApiKeys(plain_keys(["key"])), max_waiting=1, wait_s=10.0)
    status, headers, _ = asyncio.run(asyncio.wait_for(ask(app, "/v1/models"), 5))
    assert (status, headers["www-authenticate"]) == (401, "Bearer")


def test_a_client_that_leaves_while_it_waits_gives_its_place_back(service):
    with served(early_app(service, Metrics(), max_waiting=1, wait_s=60.0), Connection) as server:
        for _ in range(2):
            with connected(server) as client:
                client.sendall(b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n")
                wait_until(lambda: server.server_state.tasks)
            wait_until(lambda: not server.server_state.tasks)


def test_the_stats_need_their_key(service):
    app = early_app(service, Metrics(), admin_keys=("operator",))
    for headers in (
        [],
        [(b"authorization", b"Bearer x")],
        [(b"authorization", b"Bearer \xff\xfe")],
        [(b"authorization", b"Bearer operator")] * 2,
    ):
        status, answer, _ = asyncio.run(ask(app, "/admin/stats", headers=headers))
        assert (status, answer["www-authenticate"]) == (401, "Bearer")
    status, _, body = asyncio.run(ask(app, "/admin/stats", headers=[(b"authorization", b"bearer operator")]))
    assert (status, json.loads(body)) == (200, {"compiles": 0})
    assert asyncio.run(ask(early_app(service, Metrics()), "/admin/stats"))[0] == 404


def test_it_needs_no_web_framework():
    """Importing FastAPI or jax takes longer than a platform should wait for an open port."""
    code = "import service.server.app, sys; assert not {'fastapi', 'jax', 'numpy', 'tokenizers'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
