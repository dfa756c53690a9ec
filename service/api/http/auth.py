"""Bearer keys: every path needs one, except those of health checks.

Denies by default, on the raw path and before routing, so that a new route cannot be open by mistake.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from service.api.http.call import Call, call_of
from service.api.http.errors import respond
from service.api.http.keys import NO_KEY, ApiKeys
from service.api.http.probes import PROBE_PATHS
from service.errors import InvalidApiKey

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
        # Defends against T20.
        if self._keys and scope["type"] == "http" and scope["path"] not in PROBE_PATHS:
            call = call_of(scope)
            if not call.is_background:
                try:
                    check_key(call, scope, self._keys)
                except InvalidApiKey as error:
                    await respond(error, scope, send)
                    return
        await self._app(scope, receive, send)


def check_key(call: Call, scope: Scope, keys: ApiKeys) -> None:
    """Note the key of a request, once; raises InvalidApiKey unless there are no keys."""
    if keys and call.key is NO_KEY:
        call.key, call.cache_salt = keys.verify(scope)
        call.log_fields["api_key"] = call.key.name
