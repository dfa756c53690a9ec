"""What a check can end with besides a green light.

ServiceError
├── CheckFailed        (reply) the service does not do what it must
│   └── Unreachable        (request, is_final) no answer at all
├── NotApplicable      the service rightly does not offer what the check asks for
└── NoIdentityToken    nothing was checked, exit code 2
"""

from collections.abc import Mapping
from dataclasses import dataclass

from service.errors import ServiceError

EXCERPT_CHARS = 300


@dataclass(frozen=True)
class Reply:
    """A whole answer."""

    request: str  # method and path
    status: int
    headers: Mapping[str, str]  # names in lower case
    body: bytes
    seconds: float  # from the request's first byte to the answer's last
    was_keyed: bool  # an API key went with the request
    was_identified: bool  # an identity token did

    @property
    def is_json(self) -> bool:
        """Whether the answer says that it is JSON; Google's front end and most proxies answer HTML."""
        return self.headers.get("content-type", "").startswith("application/json")

    @property
    def request_id(self) -> str | None:
        """The id under which the server's log knows the request."""
        return self.headers.get("x-request-id")

    @property
    def excerpt(self) -> str:
        """The start of the body, on one line."""
        text = " ".join(self.body.decode("utf-8", "replace").split())
        return text if len(text) <= EXCERPT_CHARS else text[:EXCERPT_CHARS] + "…"


class CheckFailed(ServiceError):
    """The service does not do what it must."""

    def __init__(self, message: str, reply: Reply | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.reply = reply


class Unreachable(CheckFailed):
    """There is no answer, or not the whole of it."""

    def __init__(self, request: str, cause: str, *, is_final: bool = False) -> None:
        super().__init__(f"{request}: {cause}")
        self.request = request
        self.is_final = is_final  # waiting will not help: no such host, an untrusted certificate


class NotApplicable(ServiceError):
    """The service rightly does not offer what the check asks for."""


class NoIdentityToken(ServiceError):
    """Neither a metadata server nor gcloud gives an identity token."""

    def __init__(self, audience: str, causes: str) -> None:
        super().__init__(
            f"cannot get an identity token for {audience}: {causes}. Give one with --identity-token TOKEN."
        )
        self.audience = audience
