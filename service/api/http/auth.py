"""Bearer keys: every path needs one, except those of health checks.

Denies by default, on the raw path and before routing, so that a new route cannot be open by mistake.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.http.background import BACKGROUND
from service.api.http.errors import respond
from service.api.http.keys import ApiKeys
from service.api.http.probes import PROBE_PATHS
from service.errors import InvalidApiKey

# The scope's entry for the digest of the request's key; requests with different keys do not share cached prefixes.
CACHE_SALT = "levserve.cache_salt"
# The scope's entry for the key itself.
API_KEY = "levserve.api_key"
# 1008 is "policy violation"; sent before the handshake it becomes a 403.
WEBSOCKET_REFUSED = {"type": "websocket.close", "code": 1008}


class KeyCheck:
    """ASGI middleware that asks for one of the keys; without keys, every path is open, and to a batch it is always."""

    def __init__(self, app: ASGIApp, *, keys: ApiKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] == "websocket":  # no route speaks it
            await send(WEBSOCKET_REFUSED)
            return
        is_open = scope["type"] != "http" or scope["path"] in PROBE_PATHS or BACKGROUND in scope
        if self._keys and not is_open:
            try:
                scope[API_KEY], scope[CACHE_SALT] = self._keys.verify(scope)
            except InvalidApiKey as error:
                await respond(error, scope, send)
                return
            scope["state"]["log_fields"]["api_key"] = scope[API_KEY].name
        await self._app(scope, receive, send)
