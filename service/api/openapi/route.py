"""GET /openapi.json.

Source: https://spec.openapis.org/oas/v3.1.1.html
"""

from collections.abc import Sequence
from functools import partial
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response
from pydantic_core import to_json

from service.api.dependencies import ApiContext, api_context
from service.api.http.auth import CACHE_SALT
from service.api.tokenize import installed_version

router = APIRouter()


@router.get("/openapi.json")
async def describe(request: Request, context: Annotated[ApiContext, Depends(api_context)]) -> Response:
    """Return this document."""
    state, needs_key = request.app.state, CACHE_SALT in request.scope
    if needs_key not in state.documents:
        make = partial(_document, await state.routes.complete(), needs_key=needs_key)
        state.documents[needs_key] = await to_thread.run_sync(make, limiter=context.text_threads)
    return Response(state.documents[needs_key], media_type="application/json")


def _document(routers: Sequence[APIRouter], *, needs_key: bool) -> bytes:
    # Imported here, since a start has no time for it.
    from service.api.openapi.document import document

    return to_json(document(routers, installed_version(), needs_key=needs_key))
