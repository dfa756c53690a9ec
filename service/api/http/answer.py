"""JSON answers over bare ASGI, for the code that answers before FastAPI is imported, or outside its handlers."""

import json
from typing import Any, NamedTuple

from starlette.types import Scope, Send


class Answer(NamedTuple):
    """A JSON answer."""

    status: int
    body: dict[str, Any]
    headers: dict[str, str]  # without those of the content


def encoded(answer: Answer) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """Return the headers and the body of an answer as bytes."""
    body = json.dumps(answer.body, ensure_ascii=False, separators=(",", ":"), default=str).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **answer.headers}
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()], body


async def send_answer(answer: Answer, scope: Scope, send: Send) -> None:
    """Send a whole answer; to HEAD, the headers alone."""
    headers, body = encoded(answer)
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
