"""Bearer keys: every path is closed but the health checks', which have no secrets and are asked by machines.

Denies by default, on the raw path, before any route is known; so a new route cannot be open by mistake.
"""

import hashlib
import hmac
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.dependencies import CACHE_SALT
from service.api.http.errors import respond
from service.errors import InvalidApiKey

OPEN_PATHS = frozenset({"/health", "/health/live", "/health/ready", "/healthz"})
# 1008 is "policy violation"; refused before the handshake it becomes a 403.
WEBSOCKET_REFUSED = {"type": "websocket.close", "code": 1008}


class KeyCheck:
    """ASGI middleware; without keys it lets all through."""

    def __init__(self, app: ASGIApp, *, keys: Sequence[str]) -> None:
        self._app = app
        self._digests = tuple(hashlib.sha256(key.encode()).digest() for key in keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or refuse it."""
        if scope["type"] == "websocket":  # no route speaks it
            await send(WEBSOCKET_REFUSED)
            return
        if scope["type"] == "http" and self._digests and scope["path"] not in OPEN_PATHS:
            given = [value for name, value in scope["headers"] if name == b"authorization"]
            key_digest = self._matching_key(given)
            if key_digest is None:
                await respond(InvalidApiKey(is_missing=not given), scope, receive, send)
                return
            scope[CACHE_SALT] = key_digest
        await self._app(scope, receive, send)

    def _matching_key(self, given: Sequence[bytes]) -> bytes | None:
        """Compare digests, all of them and in constant time, so that the time tells nothing about the keys."""
        if len(given) != 1:
            return None
        scheme, _, key = given[0].partition(b" ")
        digest = hashlib.sha256(key.strip()).digest()
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return digest if scheme.lower() == b"bearer" and any(matches) else None
