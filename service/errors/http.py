"""Errors of HTTP itself: of connections, heads and bodies, whatever the request wants."""

from service.errors.request import RequestError


class MalformedRequest(RequestError):
    """The request breaks the rules of HTTP, or its head exceeds a limit."""

    code = "malformed_request"

    def __init__(self, message: str, *, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class MethodNotAllowed(RequestError):
    """The route exists, but not for this method."""

    status = 405
    code = "method_not_allowed"

    def __init__(self, allow: str | None = None) -> None:
        super().__init__("This route does not allow this method.")
        self.allow = allow  # the methods of the route, for the header


class BodyTooSlow(RequestError):
    """The request's body did not arrive in time."""

    status = 408
    code = "request_timeout"

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"The request's body did not arrive within {limit_s:g} s.")
        self.limit_s = limit_s


class BodyTooLarge(RequestError):
    """The request's body is over the limit."""

    status = 413
    code = "request_too_large"

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"The request's body is larger than the limit of {limit_bytes} bytes.")
        self.limit_bytes = limit_bytes


class UnsupportedMediaType(RequestError):
    """The body is compressed, or its content type is not the route's."""

    status = 415
    code = "unsupported_media_type"


class ClientDisconnected(RequestError):
    """The client closed the connection, so its work is cancelled; the status is for the log."""

    status = 499
    code = "client_closed_request"

    def __init__(self) -> None:
        super().__init__("The client closed the connection.")


class TooManyConnections(RequestError):
    """Every connection that the process can hold is in use."""

    status = 503
    type = "server_error"
    code = "too_many_connections"

    def __init__(self, limit: int) -> None:
        super().__init__(f"The server is at its limit of {limit} connections. Try again.")
        self.limit = limit
