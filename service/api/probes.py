"""The answers to health checks, as plain data: given by whoever holds the port, before the API itself is imported."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

from service.errors import RequestError

LIVE_PATH = "/health/live"
READY_PATHS = frozenset({"/health", "/health/ready", "/healthz"})
RETRY_AFTER_S = 2


@runtime_checkable
class Probed(Protocol):
    """A start under way, or over."""

    @property
    def is_live(self) -> bool:
        """False once the device thread is gone: restart me."""
        ...

    @property
    def is_ready(self) -> bool:
        """True from the moment that everything is in place until the drain."""
        ...

    def progress(self) -> dict[str, Any]:
        """Return the phases of the start as a JSON object."""
        ...


class Answer(NamedTuple):
    """A JSON answer."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str]


def live_answer(probed: Probed) -> Answer:
    """Tell whether this process should go on; 503 asks for a restart."""
    is_live = probed.is_live
    return Answer(200 if is_live else 503, {"status": "live" if is_live else "dead"}, {})


def ready_answer(probed: Probed) -> Answer:
    """Tell whether requests would be answered now, and how far the start is; 503 until real tokens were produced."""
    progress = probed.progress()
    if probed.is_ready:
        return Answer(200, {"status": "ready"} | progress, {})
    return Answer(503, {"status": "not_ready"} | progress, {"retry-after": str(RETRY_AFTER_S)})


def error_answer(error: RequestError) -> Answer:
    """Return a request error in OpenAI's form."""
    fields = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    headers = {} if error.retry_after_s is None else {"retry-after": str(error.retry_after_s)}
    return Answer(error.status, {"error": fields}, headers)
