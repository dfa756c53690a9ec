"""The routes of the API, each module imported when a request first needs it.

A start has no time to import what its first answer does not need: a chat imports the module of chats, a text that of
completions, and the first request for any other route all modules, once.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from anyio import to_thread
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from service.api import health


def _chats() -> APIRouter:
    from service.api.chat import router

    return router


def _completions() -> APIRouter:
    from service.api.completions import router

    return router


def _models() -> APIRouter:
    from service.api.models import router

    return router


# The routers that are imported by themselves, by a path of each.
BY_PATH: Mapping[str, Callable[[], APIRouter]] = {
    "/v1/chat/completions": _chats,
    "/v1/completions": _completions,
    "/v1/models": _models,
}


class Routes:
    """The routes of one app."""

    def __init__(self, app: FastAPI, *, has_batches: bool) -> None:
        """Add the probes, and take the requests that match none."""
        self._app, self._has_batches = app, has_batches
        self._added: list[APIRouter] = []
        self._lock = asyncio.Lock()
        self._is_complete = False
        self._add(health.router)
        self._not_found = app.router.default
        app.router.default = self._answer

    async def complete(self) -> Sequence[APIRouter]:
        """Add the routes that are missing, and return all."""
        async with self._lock:
            routers = await to_thread.run_sync(all_routers, self._has_batches)
            for router in routers:
                self._add(router)
            self._is_complete = True
        return routers

    def _add(self, router: APIRouter) -> None:
        if router not in self._added:
            self._added.append(router)
            _allow_head(router)
            self._app.include_router(router)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._is_complete:
            await self._not_found(scope, receive, send)
            return
        if (router_of := BY_PATH.get(scope["path"])) is None:
            await self.complete()
        else:
            async with self._lock:
                self._add(await to_thread.run_sync(router_of))
        await self._app.router(scope, receive, send)


def _allow_head(router: APIRouter) -> None:
    """Allow HEAD wherever a router allows GET, as Starlette's routes do; the server leaves the content out."""
    for route in router.routes:
        if isinstance(route, APIRoute) and route.methods and "GET" in route.methods:
            route.methods.add("HEAD")


def all_routers(has_batches: bool) -> list[APIRouter]:
    """Return the routers of an app whose routes are complete, in the order in which routes are tried."""
    from service.api import (
        audio,
        batches,
        chat,
        completions,
        decisions,
        description,
        embeddings,
        extract_text,
        files,
        invocations,
        messages,
        models,
        ollama,
        ollama_models,
        pooling,
        render,
        rerank,
        responses,
        server_info,
        stored_responses,
        tokenize,
    )

    first = (chat, completions, models, health)
    texts = (
        embeddings,
        audio,
        responses,
        messages,
        decisions,
        rerank,
        pooling,
        tokenize,
        render,
        ollama,
        ollama_models,
    )
    others = (
        invocations,
        extract_text,
        stored_responses,
        server_info,
        description,
        *((files, batches) if has_batches else ()),
    )
    return [resource.router for resource in (*first, *texts, *others)]
