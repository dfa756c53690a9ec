"""GET and DELETE /v1/responses/{response_id}, its input items, and the end of one in the background.

Source: https://platform.openai.com/docs/api-reference/responses
"""

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from service.api.batch.batches import listing
from service.api.batch.files import ids_after
from service.api.http.query import query_of
from service.api.memory.continued import stated_item
from service.api.memory.memory import KeyMemory
from service.api.schema.stored_responses import ItemsQuery, ResponseQuery

router = APIRouter()


@router.get("/v1/responses/{response_id}")
async def retrieve_response(request: Request, memory: KeyMemory) -> Response:
    """Return a response of this API key, or as much of it as there is.

    Deviations: it is not streamed.

    Source: https://platform.openai.com/docs/api-reference/responses/get
    """
    query_of(ResponseQuery, request)
    return JSONResponse(await memory.response(request.path_params["response_id"]))


@router.delete("/v1/responses/{response_id}")
async def delete_response(request: Request, memory: KeyMemory) -> Response:
    """Delete a response; those that continue it keep what they were made from.

    Source: https://platform.openai.com/docs/api-reference/responses/delete
    """
    response_id = request.path_params["response_id"]
    await memory.delete(response_id)
    return JSONResponse({"id": response_id, "object": "response", "deleted": True})


@router.get("/v1/responses/{response_id}/input_items")
async def list_input_items(request: Request, memory: KeyMemory) -> Response:
    """List the items that a response was made from, those of the responses that it continues included.

    Source: https://platform.openai.com/docs/api-reference/responses/input-items
    """
    query = query_of(ItemsQuery, request)
    items = await memory.items(request.path_params["response_id"])
    if query.order == "desc":
        items.reverse()
    num_left = len(ids_after([item["id"] for item in items], query.after))
    page = items[len(items) - num_left :][: query.limit]
    return JSONResponse(listing([stated_item(item) for item in page], has_more=num_left > query.limit))


@router.post("/v1/responses/{response_id}/cancel")
async def cancel_response(request: Request, memory: KeyMemory) -> Response:
    """End a response that is made in the background; one that has ended stays as it is.

    Source: https://platform.openai.com/docs/api-reference/responses/cancel
    """
    return JSONResponse(await memory.cancel(request.path_params["response_id"]))
