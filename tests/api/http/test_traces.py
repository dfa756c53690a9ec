"""Traces: a request's spans reach a collector, below the caller's span and above those of its stages."""

import gzip
import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from service.errors import SettingsError
from service.observability.tracing import Tracer
from tests.api.scripted_engine import MODEL, Service

pytestmark = pytest.mark.anyio

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector(http.server.BaseHTTPRequestHandler):
    """The receiving end of OpenTelemetry's protocol over HTTP."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
        self.server.received.append((self.path, ExportTraceServiceRequest.FromString(body)))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def collector() -> Iterator[http.server.ThreadingHTTPServer]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        server.received = []
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        server.shutdown()


async def spans_of(collector, service_name=None, path="/v1/chat/completions", headers=None, **body):
    """Answer a request of a service with traces; return its spans by name, and the resource's attributes."""
    tracer = Tracer(f"http://127.0.0.1:{collector.server_port}/", service_name)
    async with Service(tracer=tracer).client() as client:
        content = {"model": MODEL, "messages": [{"role": "user", "content": "canary-prompt"}]} | body
        await client.post(path, json=content, headers=headers or {})
        await client.get("/health")
    tracer.close()
    assert {path for path, _ in collector.received} == {"/v1/traces"}
    resources = [resource for _, request in collector.received for resource in request.resource_spans]
    spans = [span for resource in resources for scope in resource.scope_spans for span in scope.spans]
    assert "canary-prompt" not in str(spans)
    return {span.name: span for span in spans}, attributes_of(resources[0].resource)


def attributes_of(item) -> dict[str, object]:
    return {a.key: a.value.string_value or a.value.int_value for a in item.attributes}


async def test_the_stages_of_a_request_lie_below_it_and_it_below_its_caller(collector):
    spans, resource = await spans_of(collector, "chat", headers={"traceparent": f"00-{TRACE}-{SPAN}-01"})
    assert spans.keys() == {"POST /v1/chat/completions", "queue", "prefill", "decode"}  # no probe
    root = spans.pop("POST /v1/chat/completions")
    assert (root.trace_id.hex(), root.parent_span_id.hex()) == (TRACE, SPAN)
    moments = [root.start_time_unix_nano]
    for name in ("queue", "prefill", "decode"):
        assert (spans[name].trace_id, spans[name].parent_span_id) == (root.trace_id, root.span_id)
        moments += [spans[name].start_time_unix_nano, spans[name].end_time_unix_nano]
    assert [*moments, root.end_time_unix_nano] == sorted([*moments, root.end_time_unix_nano])
    facts = attributes_of(root)
    assert (facts["http.route"], facts["http.response.status_code"]) == ("/v1/chat/completions", 200)
    assert (facts["gen_ai.request.model"], facts["gen_ai.response.finish_reasons"]) == (MODEL, "stop")
    assert facts["gen_ai.usage.output_tokens"] > 0
    assert resource["service.name"] == "chat"


async def test_a_request_without_a_caller_is_a_trace_of_its_own_and_a_refusal_says_why(collector):
    spans, _ = await spans_of(collector, temperature=99)
    [root] = spans.values()
    assert (root.parent_span_id, len(root.trace_id)) == (b"", 16)
    facts = attributes_of(root)
    assert (facts["http.response.status_code"], facts["error.type"]) == (400, "invalid_value")


async def test_a_caller_that_does_not_sample_is_not_traced(collector):
    tracer = Tracer(f"http://127.0.0.1:{collector.server_port}", None)
    async with Service(tracer=tracer).client() as client:
        await client.get("/v1/models", headers={"traceparent": f"00-{TRACE}-{SPAN}-00"})
    tracer.close()
    assert not collector.received


def test_a_process_without_traces_imports_no_exporter():
    code = (
        "import sys, service.observability.tracing, service.api.application\n"
        "assert not {'opentelemetry.sdk', 'opentelemetry.exporter'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_traces_without_opentelemetry_stop_the_start(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(SettingsError, match=r"OTEL_EXPORTER_OTLP_ENDPOINT: needs OpenTelemetry.*--extra otel"):
        Tracer("http://localhost:4318", None)
