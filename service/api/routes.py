"""The routes of the API: most of them at once, the others at the first request that finds none.

A start has no time to import those that few clients use; the first request for one waits for the import, once.
"""

import asyncio
from collections.abc import Sequence

from anyio import to_thread
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from service.api import chat, completions, health, models

FIRST = (chat, completions, models, health)


class Routes:
    """The routes of one app."""

    def __init__(self, app: FastAPI, *, has_batches: bool) -> None:
        """Add the first routes, and take the requests that match none."""
        self._app, self._has_batches = app, has_batches
        self._routers = [resource.router for resource in FIRST]
        self._lock = asyncio.Lock()
        self._is_complete = False
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


def all_routers(*, has_batches: bool) -> list[APIRouter]:
    """Return the routers of an app whose routes are complete."""
    return [*(resource.router for resource in FIRST), *_others(has_batches)]


def _others(has_batches: bool) -> list[APIRouter]:
    from service.api import (
        audio,
        batches,
        description,
        embeddings,
        extract_text,
        files,
        invocations,
        messages,
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

    # Routes are tried in this order.
    texts = (embeddings, audio, responses, messages, rerank, pooling, tokenize, render, ollama, ollama_models)
    others = (
        invocations,
        extract_text,
        stored_responses,
        server_info,
        description,
        *((files, batches) if has_batches else ()),
    )
    return [resource.router for resource in (*texts, *others)]
