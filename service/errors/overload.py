"""Errors of requests that find no room, or that have waited too long for it."""

from service.errors.request import RequestError


class Overloaded(RequestError):
    """The server is at its limit of concurrent requests."""

    status = 429
    type = "rate_limit_error"
    code = "server_overloaded"

    def __init__(self, *, running: int, limit: int, retry_after_s: int = 1) -> None:
        super().__init__(f"The server is at its limit of {limit} {self._counted()}. Try again in {retry_after_s} s.")
        self.running = running
        self.limit = limit
        self.retry_after_s = retry_after_s

    def _counted(self) -> str:
        """Return what is limited, in words."""
        return "concurrent requests"


class QueueFull(Overloaded):
    """As many requests wait as MAX_QUEUE_SIZE allows."""

    code = "queue_full"

    def _counted(self) -> str:
        return "waiting requests"


class QueuedTokensFull(Overloaded):
    """The waiting requests have as many prompt tokens as MAX_QUEUED_TOKENS allows."""

    code = "queued_tokens_full"

    def _counted(self) -> str:
        return "waiting prompt tokens"


class BodyBytesFull(Overloaded):
    """The bodies of open requests have as many bytes as MAX_OPEN_BODY_BYTES allows."""

    code = "body_bytes_full"

    def _counted(self) -> str:
        return "bytes of open request bodies"


class LongBodiesFull(Overloaded):
    """The work on the long bodies of waiting requests takes all the time that it may take for a while."""

    code = "long_bodies_full"

    def _counted(self) -> str:
        return "long request bodies"


class QueueTimeout(RequestError):
    """The request waited longer than QUEUE_TIMEOUT for its first step."""

    status = 503
    type = "server_error"
    code = "queue_timeout"

    def __init__(self, limit_s: float, *, retry_after_s: int | None = None) -> None:
        super().__init__(
            f"The request waited longer than QUEUE_TIMEOUT = {limit_s:g} s and was not begun. Try again later."
        )
        self.limit_s = limit_s
        self.retry_after_s = retry_after_s
