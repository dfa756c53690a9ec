"""POST and GET /v1/batches: requests that are answered when there is time for them.

Source: https://platform.openai.com/docs/api-reference/batch
"""

from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, Response

from service.api.answers.batches import BatchList, BatchObject
from service.api.batch.access import AppBatches, Owner, in_store
from service.api.batch.batches import listing
from service.api.http.query import query_of
from service.api.http.receive import json_body
from service.api.openapi.responses import STORE_ERRORS, answers
from service.api.schema.batches import BatchQuery, BatchRequest

router = APIRouter(tags=["batches"])


@router.post("/v1/batches", responses=answers(BatchObject, 400, 408, 413, 415, 503))
async def create_batch(
    body: Annotated[BatchRequest, Depends(json_body(BatchRequest))],
    batches: AppBatches,
    owner: Owner,
) -> Response:
    """Answer the requests of an uploaded file within 24 hours, behind all other requests.

    Only the API key that creates a batch sees it. Each line goes through the same route as a request of its own. A
    batch continues after a restart, and in another instance that shares BATCH_URI. Requests without an answer at the
    end of the window, or of a cancelled batch, are named in the file of errors.

    Source: https://platform.openai.com/docs/api-reference/batch/create
    """
    expiry = body.output_expires_after
    batch = await in_store(
        lambda: batches.create(
            owner,
            input_file_id=body.input_file_id,
            endpoint=body.endpoint,
            metadata=body.metadata,
            output_expires_after_s=None if expiry is None else expiry.seconds,
        )
    )
    batches.has_news.set()
    return JSONResponse(batch.document())


@router.get("/v1/batches", responses=answers(BatchList, 400, 503))
async def list_batches(
    batches: AppBatches,
    owner: Owner,
    query: Annotated[BatchQuery, Depends(query_of(BatchQuery))],
) -> Response:
    """List the batches of the API key, the newest first."""
    found, has_more = await in_store(lambda: batches.page(owner, limit=query.limit, after=query.after))
    return JSONResponse(listing([batch.document() for batch in found], has_more=has_more))


@router.get("/v1/batches/{batch_id}", responses=answers(BatchObject, 404, 503))
async def retrieve_batch(
    batch_id: str,
    batches: AppBatches,
    owner: Owner,
) -> Response:
    """Describe one batch, with its counts so far."""
    batch = await in_store(lambda: batches.get(owner, batch_id))
    return JSONResponse(batch.document())


@router.post("/v1/batches/{batch_id}/cancel", responses=answers(BatchObject, *STORE_ERRORS))
async def cancel_batch(
    batch_id: str,
    batches: AppBatches,
    owner: Owner,
) -> Response:
    """End a batch; the answers so far stay."""
    batch = await in_store(lambda: batches.cancel(owner, batch_id))
    batches.interrupt(batch)
    return JSONResponse(batch.document())
