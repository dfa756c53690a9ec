"""The recorder of traces, if the settings name a collector."""

from typing import TYPE_CHECKING

from service.settings import Settings

if TYPE_CHECKING:
    from service.observability.tracing import Tracer


def tracer_of(settings: Settings) -> "Tracer | None":
    """Return what sends the spans of requests to the collector; None if there is none."""
    if settings.otel_exporter_otlp_endpoint is None:
        return None
    from service.observability.tracing import Tracer  # the libraries of the extra `otel`

    return Tracer(settings.otel_exporter_otlp_endpoint, settings.k_service)
