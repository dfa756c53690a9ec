"""GET /openapi.json.

Source: https://spec.openapis.org/oas/v3.1.1.html
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from pydantic_core import to_json

from service.api.answers.service import Description
from service.api.dependencies import api_context
from service.api.http.call import ApiContext, call_of
from service.api.openapi.responses import answers

type AllRouters = Callable[[], Awaitable[Sequence[APIRouter]]]

router = APIRouter(tags=["service"])


class Documents:
    """The document of an app whose clients have a key, and of one whose clients have none; each is made once."""

    def __init__(self) -> None:
        self._making: dict[bool, asyncio.Task[bytes]] = {}

    async def document(self, context: ApiContext, all_routers: AllRouters, *, needs_key: bool) -> bytes:
        """Return the document of all routers as JSON; requests that come while it is made wait for it."""
        making = self._making.get(needs_key)
        if making is None or (making.done() and (making.cancelled() or making.exception() is not None)):
            making = asyncio.create_task(self._make(context, all_routers, needs_key=needs_key))
            self._making[needs_key] = making
        # A client that leaves ends only its own wait.
        return await asyncio.shield(making)

    async def _make(self, context: ApiContext, all_routers: AllRouters, *, needs_key: bool) -> bytes:
        make = partial(_document, await all_routers(), needs_key=needs_key)
        return await context.text_threads.run(make)


def _document(routers: Sequence[APIRouter], *, needs_key: bool) -> bytes:
    # Imported here, since a start has no time for it.
    from service.api.openapi.document import document

    return to_json(document(routers, installed_version(), needs_key=needs_key))


@router.get("/openapi.json", responses=answers(Description))
async def describe(request: Request, context: Annotated[ApiContext, Depends(api_context)]) -> Response:
    """Return this document."""
    state = request.app.state
    content = await state.documents.document(
        context, state.routes.complete, needs_key=bool(call_of(request.scope).cache_salt)
    )
    return Response(content, media_type="application/json")


def installed_version() -> str:
    """Return the version of the installed package."""
    try:
        return version("levserve")
    except PackageNotFoundError:  # it runs from its source
        return "not installed"
