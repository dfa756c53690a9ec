"""A legal body whose work exceeds what one request may take."""

from service.errors.request import RequestError


class BodyTooLaborious(RequestError):
    """Reading, rendering or tokenizing one request has taken too much time or memory."""

    code = "request_too_laborious"

    def __init__(self, reason: str) -> None:
        super().__init__(f"Processing this request body {reason}. Send a shorter request.")
        self.reason = reason
