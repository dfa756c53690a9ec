"""OpenTelemetry traces: a span per request with child spans for queue, prefill and decode.

Spans are created when the request has ended, so tracing costs nothing while tokens are generated. OTEL_* variables
configure sampling, names and the exporter's headers.

Source: https://opentelemetry.io/docs/specs/semconv/http/http-spans/, .../gen-ai/gen-ai-spans/ (attributes)
"""

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from service.errors import MissingExtra, SettingsError
from service.observability.trace_context import TraceContext

SERVER_ERROR = 500


@dataclass(frozen=True)
class RequestSpan:
    """A finished request; its times are in seconds of `time.perf_counter`."""

    name: str
    parent: TraceContext | None
    begin_s: float
    end_s: float
    status: int
    attributes: Mapping[str, str | int]
    stages: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # begin and end, by name


class Tracer:
    """Sends spans to a collector from a background thread."""

    def __init__(self, endpoint: str, service: str | None) -> None:
        """Import OpenTelemetry and connect.

        Args:
            endpoint: OTEL_EXPORTER_OTLP_ENDPOINT, such as `http://localhost:4318`.
            service: the service's name if OTEL_SERVICE_NAME is unset.

        Raises:
            SettingsError: OpenTelemetry is not installed.
        """
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            reason = f"needs OpenTelemetry. {MissingExtra.remedy('otel')}"
            raise SettingsError("OTEL_EXPORTER_OTLP_ENDPOINT", reason) from error
        resource = Resource.create()
        if str(resource.attributes["service.name"]).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": service or "levserve"}))
        self._trace = trace
        self._provider = TracerProvider(resource=resource)
        exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces")
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("levserve")

    def record(self, request: RequestSpan) -> None:
        """Create the spans of a request, to be sent later."""
        trace, now_ns, now_s = self._trace, time.time_ns(), time.perf_counter()

        def at(moment_s: float) -> int:
            return now_ns - int((now_s - moment_s) * 1e9)

        context = None
        if (parent := request.parent) is not None:
            span_id = int(parent.span_id, 16) if parent.span_id else secrets.randbits(63) + 1
            flags = trace.TraceFlags(trace.TraceFlags.SAMPLED if parent.is_sampled else trace.TraceFlags.DEFAULT)
            remote = trace.SpanContext(int(parent.trace_id, 16), span_id, is_remote=True, trace_flags=flags)
            context = trace.set_span_in_context(trace.NonRecordingSpan(remote))
        span = self._tracer.start_span(
            request.name, context, trace.SpanKind.SERVER, dict(request.attributes), start_time=at(request.begin_s)
        )
        if request.status >= SERVER_ERROR:
            span.set_status(trace.StatusCode.ERROR)
        inside = trace.set_span_in_context(span)
        for name, (begin_s, end_s) in request.stages.items():
            self._tracer.start_span(name, inside, start_time=at(begin_s)).end(at(end_s))
        span.end(at(request.end_s))

    def close(self) -> None:
        """Send pending spans."""
        self._provider.shutdown()
