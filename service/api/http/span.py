"""The span of a request: what it asked for, how it ended, and the stages of its sequences.

Source: https://opentelemetry.io/docs/specs/semconv/http/http-spans/, .../gen-ai/gen-ai-spans/ (attributes)
"""

from collections.abc import Sequence

from starlette.types import Scope

from service.observability.clock import Clock
from service.observability.trace_context import current_trace
from service.observability.tracing import RequestSpan

# OpenTelemetry's names for facts of the log line.
ATTRIBUTES = {
    "model": "gen_ai.request.model",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "completion_tokens": "gen_ai.usage.output_tokens",
    "finish_reason": "gen_ai.response.finish_reasons",
    "cached_tokens": "levserve.cached_tokens",
    "error_code": "error.type",
}


def request_span(scope: Scope, route: str, status: int, begin_s: float, end_s: float) -> RequestSpan:
    """Return the span of a request that has ended.

    Args:
        scope: of the request, with the state that `AccessLog` has put there.
        route: its pattern.
        status: of the answer.
        begin_s: when it arrived, in seconds of `time.perf_counter`.
        end_s: when the answer ended.
    """
    state = scope["state"]
    facts = {ATTRIBUTES[name]: value for name, value in state["log_fields"].items() if name in ATTRIBUTES}
    attributes = {
        "http.request.method": scope["method"],
        "http.route": route,
        "http.response.status_code": status,
        "levserve.request_id": state["request_id"],
        **facts,
    }
    name = f"{scope['method']} {route}"
    return RequestSpan(name, current_trace.get(), begin_s, end_s, status, attributes, _stages(state["clocks"]))


def _stages(clocks: Sequence[Clock]) -> dict[str, tuple[float, float]]:
    """Return the stages that all sequences together went through, as far as they got."""
    moments = [
        min((clock.submitted_s for clock in clocks), default=None),
        max((clock.scheduled_s for clock in clocks if clock.scheduled_s is not None), default=None),
        max((clock.first_token_s for clock in clocks if clock.first_token_s is not None), default=None),
        max((clock.last_token_s for clock in clocks if clock.last_token_s is not None), default=None),
    ]
    spans = zip(("queue", "prefill", "decode"), moments[:-1], moments[1:], strict=True)
    return {name: (begin, end) for name, begin, end in spans if begin is not None and end is not None}
