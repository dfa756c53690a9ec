"""A legal body whose work exceeds what one request may take."""

from service.errors.request import RequestError


class BodyTooLaborious(RequestError):
    """Reading, rendering or tokenizing one request has taken too much time or memory."""

    code = "request_too_laborious"

    def __init__(self, reason: str) -> None:
        super().__init__(f"The work on the request's body {reason}. Send a shorter request.")
        self.reason = reason
