"""Replies of the service, and the ways in which a check can fail to pass.

ServiceError
├── CheckFailed        (reply) the service misbehaves
│   └── Unreachable        (request, is_refused, is_final) no answer
├── NotApplicable      the service does not have the tested feature
└── NoIdentityToken    no check has run; exit code 2
"""

from collections.abc import Mapping
from dataclasses import dataclass

from service.errors import ServiceError

EXCERPT_CHARS = 300


@dataclass(frozen=True)
class Reply:
    """A complete answer."""

    request: str  # method and path
    status: int
    headers: Mapping[str, str]  # names are case-insensitive
    body: bytes
    seconds: float  # from the request's first byte to the answer's last
    was_keyed: bool  # whether the request had an API key
    was_identified: bool  # whether the request had an identity token

    @property
    def is_json(self) -> bool:
        """Whether the content type is JSON; Google's front end and most proxies return HTML."""
        return self.headers.get("content-type", "").startswith("application/json")

    @property
    def request_id(self) -> str | None:
        return self.headers.get("x-request-id")

    @property
    def excerpt(self) -> str:
        """The start of the body on one line, at most `EXCERPT_CHARS` long."""
        text = " ".join(self.body.decode("utf-8", "replace").split())
        return text if len(text) <= EXCERPT_CHARS else text[:EXCERPT_CHARS] + "…"


class CheckFailed(ServiceError):
    """The service does not behave as expected."""

    def __init__(self, message: str, reply: Reply | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.reply = reply


class Unreachable(CheckFailed):
    """There is no answer, or an incomplete one."""

    def __init__(self, request: str, cause: str, *, is_refused: bool = False, is_final: bool = False) -> None:
        super().__init__(f"{request}: {cause}")
        self.request = request
        self.is_refused = is_refused
        self.is_final = is_final  # whether waiting is pointless: no such host, an untrusted certificate


class NotApplicable(ServiceError):
    """The service need not support the tested feature."""


class NoIdentityToken(ServiceError):
    """Neither a metadata server nor gcloud provides an identity token."""

    def __init__(self, audience: str, causes: str) -> None:
        super().__init__(
            f"cannot get an identity token for {audience}: {causes}. Give one with --identity-token TOKEN."
        )
        self.audience = audience
