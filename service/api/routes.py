"""The routes of the API: most of them at once, the others at the first request that finds none.

A start has no time to import those that few clients use; the first request for one waits for the import, once.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import override

from anyio import to_thread
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from service.api import chat, completions, health, models, render, responses, tokenize
from service.api.openapi import route as openapi

FIRST = (chat, completions, responses, render, models, tokenize, health, openapi)


class FixedPaths(BaseRoute):
    """The routes whose paths have no parameters, found by their path.

    FastAPI tries one route after the other, twice, which takes a fifth of the time of a request for a short text.
    """

    def __init__(self) -> None:
        self._by_path: defaultdict[str, list[APIRoute]] = defaultdict(list)

    @property
    def routes(self) -> Sequence[APIRoute]:
        """All of them."""
        return [route for routes in self._by_path.values() for route in routes]

    def add(self, router: APIRouter) -> None:
        """Add the routes of a router, which lies at the root and has no dependencies of its own."""
        for route in router.routes:
            if isinstance(route, APIRoute) and not route.param_convertors:
                self._by_path[route.path].append(route)

    @override
    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Return the route of a request's path and method; a partial match is one of another method."""
        found: tuple[Match, Scope] = Match.NONE, {}
        for route in self._by_path.get(scope["path"], ()):
            match, child_scope = route.matches(scope)
            if match == Match.FULL:
                return match, child_scope
            found = match, child_scope
        return found

    @override
    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request by the route that matched."""
        await scope["route"].handle(scope, receive, send)


class Routes:
    """The routes of one app."""

    def __init__(self, app: FastAPI, *, has_batches: bool) -> None:
        """Add the first routes, and take the requests that match none."""
        self._app, self._has_batches = app, has_batches
        self._routers = [resource.router for resource in FIRST]
        self._lock = asyncio.Lock()
        self._is_complete = False
        self._fixed = FixedPaths()
        app.router.routes.append(self._fixed)
        for router in self._routers:
            self._add(router)
        self._not_found = app.router.default
        app.router.default = self._answer

    async def complete(self) -> Sequence[APIRouter]:
        """Add the routes that are missing, and return all."""
        async with self._lock:
            if not self._is_complete:
                for router in await to_thread.run_sync(_others, self._has_batches):
                    self._routers.append(router)
                    self._add(router)
                self._is_complete = True
        return self._routers

    def _add(self, router: APIRouter) -> None:
        _allow_head(router)
        self._fixed.add(router)
        self._app.include_router(router)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._is_complete:
            await self._not_found(scope, receive, send)
        else:
            await self.complete()
            await self._app.router(scope, receive, send)


def _allow_head(router: APIRouter) -> None:
    """Allow HEAD wherever a router allows GET, as Starlette's routes do; the server leaves the content out."""
    for route in router.routes:
        if isinstance(route, APIRoute) and route.methods and "GET" in route.methods:
            route.methods.add("HEAD")


def _others(has_batches: bool) -> list[APIRouter]:
    from service.api import (
        batches,
        embeddings,
        files,
        invocations,
        messages,
        ollama,
        ollama_models,
        pooling,
        rerank,
        server_info,
        stored_responses,
    )

    of_models = (messages, embeddings, rerank, pooling, ollama, ollama_models, server_info, invocations)
    return [resource.router for resource in (stored_responses, *of_models, *((files, batches) if has_batches else ()))]
