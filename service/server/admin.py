"""The operator's routes behind ADMIN_API_KEY: statistics, and loading and unloading of models.

They do not need the API, so that statistics are available from the beginning of a start.
"""

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING

from starlette.types import Receive, Scope

from service.api.http.errors import Answer
from service.api.http.keys import ApiKeys, plain_keys
from service.errors import (
    BodyTooLarge,
    BodyTooSlow,
    ClientDisconnected,
    MethodNotAllowed,
    MissingParameter,
    UnknownRoute,
)
from service.server.service import Service

if TYPE_CHECKING:
    from service.api.schema.adapters import AdapterRequest

PREFIX = "/admin/"
STATS_PATHS = frozenset({"/admin/stats", "/stats"})
MODELS_PATH = "/admin/models"
LOAD_PREFIX, UNLOAD_PREFIX = "/admin/load/", "/admin/unload/"
# vLLM's, for adapters.
ADD_ADAPTER_PATH, REMOVE_ADAPTER_PATH = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
ADAPTER_PATHS = frozenset({ADD_ADAPTER_PATH, REMOVE_ADAPTER_PATH})
MAX_BODY_BYTES, BODY_TIMEOUT_S = 64 * 1024, 10.0
# A model's name is the rest of the path, including slashes.
ROUTES: Mapping[str, str] = {
    **dict.fromkeys(STATS_PATHS, "GET"),
    MODELS_PATH: "GET",
    f"{LOAD_PREFIX}{{model}}": "POST",
    f"{UNLOAD_PREFIX}{{model}}": "POST",
    ADD_ADAPTER_PATH: "POST",
    REMOVE_ADAPTER_PATH: "POST",
}


def admin_route(path: str) -> str | None:
    """Return the operator's route for a path, as named in metrics and logs; None if it belongs to the API."""
    for prefix in (LOAD_PREFIX, UNLOAD_PREFIX):
        if path.startswith(prefix):
            return f"{prefix}{{model}}"
    if path in ROUTES:
        return path
    return f"{PREFIX}…" if path.startswith(PREFIX) else None


class AdminRoutes:
    """Answers the operator's requests."""

    def __init__(self, service: Service, keys: tuple[str, ...]) -> None:
        """Create the routes of a service; without keys, none of them exists."""
        self._service, self._keys = service, ApiKeys(plain_keys(keys))

    async def answer(self, scope: Scope, receive: Receive) -> Answer:
        """Return the answer to a request of one of the routes; only those of adapters have a body.

        Raises:
            RequestError, EngineError: the request is at fault, or no model can answer.
        """
        path = scope["path"]
        if not self._keys:
            # Defends against T22.
            raise UnknownRoute("There is no such route. Set ADMIN_API_KEY to enable it.")
        self._keys.verify(scope)
        method = ROUTES.get(admin_route(path) or "")
        if method is None:
            raise UnknownRoute(f"There is no such route. Admin routes are {', '.join(sorted(ROUTES))}.")
        if scope["method"] != method and (method, scope["method"]) != ("GET", "HEAD"):
            raise MethodNotAllowed(method)
        if path in STATS_PATHS:
            return Answer(200, self._service.stats(), {})
        pool = self._service.open_pool
        if path == MODELS_PATH:
            return Answer(200, {"object": "list", "data": pool.reports()}, {})
        if path in ADAPTER_PATHS:
            body = await _read_body(receive)
            if path == REMOVE_ADAPTER_PATH:
                pool.remove_adapter(body.lora_name)
                return Answer(200, {"id": body.lora_name, "object": "model", "deleted": True}, {})
            if body.lora_path is None:
                raise MissingParameter("lora_path")
            await pool.add_adapter(body.lora_name, body.lora_path, in_place=body.load_inplace)
            return Answer(200, pool.report(body.lora_name), {})
        # The body is not read, so the connection cannot be reused.
        headers = {"connection": "close"}
        if path.startswith(LOAD_PREFIX):
            name = path.removeprefix(LOAD_PREFIX)
            pool.begin_load(name)
            report = pool.report(name)
            return Answer(200 if report["state"] == "ready" else 202, report, headers)
        name = path.removeprefix(UNLOAD_PREFIX)
        was_loaded = await pool.unload(name)
        return Answer(200, {**pool.report(name), "was_loaded": was_loaded}, headers)


async def _read_body(receive: Receive) -> "AdapterRequest":
    """Read the body of a request about an adapter.

    Raises:
        RequestError: it is too large or too slow, or malformed.
    """
    from service.api.schema.adapters import AdapterRequest  # a start has no time for it
    from service.api.schema.wire import parse

    content = b""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnected
                content += message.get("body", b"")
                if len(content) > MAX_BODY_BYTES:
                    raise BodyTooLarge(MAX_BODY_BYTES)
                if not message.get("more_body", False):
                    return parse(AdapterRequest, content)
    except TimeoutError:
        raise BodyTooSlow(BODY_TIMEOUT_S) from None
