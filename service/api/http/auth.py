"""Bearer keys: every path needs one, except those of health checks.

Denies by default, on the raw path and before routing, so that a new route cannot be open by mistake.
"""

import hashlib
import hmac
from collections.abc import Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.http.background import background_of
from service.api.http.errors import respond
from service.api.http.probes import PROBE_PATHS
from service.errors import InvalidApiKey

# The scope's entry for the digest of the request's key; requests with different keys do not share cached prefixes.
CACHE_SALT = "levserve.cache_salt"
# 1008 is "policy violation"; sent before the handshake it becomes a 403.
WEBSOCKET_REFUSED = {"type": "websocket.close", "code": 1008}


class ApiKeys:
    """The keys that open a part of the service, kept as digests."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = tuple(hashlib.sha256(key.encode()).digest() for key in keys)

    def __bool__(self) -> bool:
        return bool(self._digests)

    def verify(self, scope: Scope) -> bytes:
        """Return the SHA-256 digest of a request's key.

        Compares with all digests and in constant time, so that timing reveals nothing about the keys.

        Raises:
            InvalidApiKey: the request has no key, a wrong one, or two.
        """
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) == 1:
            scheme, _, key = given[0].partition(b" ")
            digest = hashlib.sha256(key.strip()).digest()
            matches = [hmac.compare_digest(digest, known) for known in self._digests]
            if scheme.lower() == b"bearer" and any(matches):
                return digest
        raise InvalidApiKey(is_missing=not given)


class KeyCheck:
    """ASGI middleware that asks for one of the keys; without keys, every path is open, and to a batch it is always."""

    def __init__(self, app: ASGIApp, *, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = ApiKeys(keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "websocket":  # no route speaks it
            await send(WEBSOCKET_REFUSED)
            return
        is_open = scope["type"] != "http" or scope["path"] in PROBE_PATHS or background_of(scope) is not None
        if self._keys and not is_open:
            try:
                scope[CACHE_SALT] = self._keys.verify(scope)
            except InvalidApiKey as error:
                await respond(error, scope, send)
                return
        await self._app(scope, receive, send)
