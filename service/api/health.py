"""What probes and Prometheus ask: alive, ready, numbers."""

from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, Response

from service.api.dependencies import ApiContext, context_of
from service.api.probes import Answer, live_answer, ready_answer
from service.observability.metrics import CONTENT_TYPE

router = APIRouter()


@router.get("/health/live")
async def live(context: Annotated[ApiContext, Depends(context_of)]) -> Response:
    """Tell whether this process should go on; 503 asks for a restart."""
    return _response(live_answer(context.readiness))


@router.get("/health/ready")
@router.get("/health")
@router.get("/healthz")
async def ready(context: Annotated[ApiContext, Depends(context_of)]) -> Response:
    """Tell whether requests would be answered now, and how far the start is; 503 until a real token was produced."""
    return _response(ready_answer(context.readiness))


@router.get("/metrics")
async def metrics(context: Annotated[ApiContext, Depends(context_of)]) -> Response:
    """Return all series in Prometheus' text format; a key is needed if API_KEY is set."""
    return Response(context.metrics.exposition(), media_type=CONTENT_TYPE)


def _response(answer: Answer) -> Response:
    return JSONResponse(answer.body, answer.status, answer.headers)
