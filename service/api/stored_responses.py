"""GET and DELETE /v1/responses/{response_id}, its input items, and the end of one in the background.

Source: https://platform.openai.com/docs/api-reference/responses
"""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import JSONResponse, Response
from pydantic_core import from_json, to_json

from service.api.answers.responses import DeletedResponse, InputItemList, ResponseObject
from service.api.batch.batches import listing
from service.api.http.call import call_of
from service.api.http.query import query_of
from service.api.memory.continued import stated_item, with_own_ids
from service.api.memory.memory import KeyMemory
from service.api.openapi.responses import STORE_ERRORS, answers
from service.api.schema.stored_responses import ItemsQuery, ResponseQuery
from service.api.work.long_work import SHORT_BODY_BYTES
from service.errors import InvalidParameter

router = APIRouter(tags=["generation"])


@router.get("/v1/responses/{response_id}", responses=answers(ResponseObject, *STORE_ERRORS))
async def retrieve_response(
    request: Request,
    response_id: str,
    memory: KeyMemory,
    query: Annotated[ResponseQuery, Depends(query_of(ResponseQuery))],
) -> Response:
    """Return a response of this API key, or as much of it as there is.

    Deviations: it is not streamed.

    Source: https://platform.openai.com/docs/api-reference/responses/get
    """
    context, client = request.app.state.context, call_of(request.scope).key
    async with context.text_threads.stored.held(client):
        response = await memory.response(response_id)
        return await context.text_threads.run(partial(JSONResponse, response), client=client)


@router.delete("/v1/responses/{response_id}", responses=answers(DeletedResponse, 404, 503))
async def delete_response(response_id: str, memory: KeyMemory) -> Response:
    """Delete a response; those that continue it keep what they were made from.

    Source: https://platform.openai.com/docs/api-reference/responses/delete
    """
    await memory.delete(response_id)
    return JSONResponse({"id": response_id, "object": "response", "deleted": True})


@router.get("/v1/responses/{response_id}/input_items", responses=answers(InputItemList, *STORE_ERRORS))
async def list_input_items(
    request: Request,
    response_id: str,
    memory: KeyMemory,
    query: Annotated[ItemsQuery, Depends(query_of(ItemsQuery))],
) -> Response:
    """List the items that a response was made from, those of the responses that it continues included.

    Source: https://platform.openai.com/docs/api-reference/responses/input-items
    """
    context, client = request.app.state.context, call_of(request.scope).key
    async with context.text_threads.stored.held(client):
        items = await memory.items(response_id)
        page = partial(item_page, items, query.order, query.after, query.limit)
        # Parsing holds the interpreter, so that a long conversation is read in another process.
        is_short = len(items) <= SHORT_BODY_BYTES
        content = page() if is_short else await context.long_bodies.run(page, client=client)
    return Response(content, media_type="application/json")


def item_page(content: bytes, order: str, after: str | None, limit: int) -> bytes:
    """Return a page of the items of a conversation as JSON.

    Raises:
        InvalidParameter: no item has the id that the page comes after.
    """
    items = with_own_ids(from_json(content))
    if order == "desc":
        items.reverse()
    ids = [item["id"] for item in items]
    if after is not None and after not in ids:
        raise InvalidParameter("Invalid 'after': there is no such object.", param="after")
    begin = 0 if after is None else ids.index(after) + 1
    page = items[begin : begin + limit]
    return to_json(listing([stated_item(item) for item in page], has_more=begin + limit < len(items)))


@router.post("/v1/responses/{response_id}/cancel", responses=answers(ResponseObject, *STORE_ERRORS))
async def cancel_response(response_id: str, memory: KeyMemory) -> Response:
    """End a response that is made in the background; one that has ended stays as it is.

    Source: https://platform.openai.com/docs/api-reference/responses/cancel
    """
    return JSONResponse(await memory.cancel(response_id))


@router.post("/v1/responses/{response_id}", include_in_schema=False)
async def refuse_operation() -> Response:
    """Say that OpenAI's other operations, `compact` and `input_tokens`, have no route: the paths are those of ids."""
    raise HTTPException(404)
