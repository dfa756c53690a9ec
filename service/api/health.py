"""GET /health/live, /health/ready and /metrics: probes, and Prometheus' series."""

from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, Response

from service.api.dependencies import ApiContext, api_context
from service.api.http.answer import Answer
from service.api.http.probes import LIVE_PATH, METRICS_PATH, READY_PATHS, live_answer, ready_answer
from service.observability.metrics import CONTENT_TYPE

router = APIRouter()


@router.get(LIVE_PATH)
async def live(context: Annotated[ApiContext, Depends(api_context)]) -> Response:
    """Report whether the process should go on; 503 asks for a restart."""
    return _response(live_answer(context.readiness))


async def ready(context: Annotated[ApiContext, Depends(api_context)]) -> Response:
    """Report whether requests would be answered now, and the progress of the start; 503 until the first real token."""
    return _response(ready_answer(context.readiness))


for path in READY_PATHS:
    router.get(path)(ready)


@router.get(METRICS_PATH)
async def metrics(context: Annotated[ApiContext, Depends(api_context)]) -> Response:
    """Return all series in Prometheus' text format; needs a key if API_KEY is set."""
    return Response(context.metrics.exposition(), media_type=CONTENT_TYPE)


def _response(answer: Answer) -> Response:
    return JSONResponse(answer.body, answer.status, answer.headers)
