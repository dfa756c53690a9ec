"""GET /health/live, /health/ready, /metrics and /metrics/load: probes, and Prometheus' series."""

from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, PlainTextResponse, Response

from service.api.answers.service import Liveness, Readiness
from service.api.dependencies import api_context
from service.api.http.call import ApiContext
from service.api.http.errors import Answer
from service.api.http.probes import LIVE_PATH, METRICS_PATH, READY_PATHS, live_answer, ready_answer
from service.api.openapi.responses import in_any_state
from service.observability.metrics import CONTENT_TYPE, LOAD_CONTENT_TYPE, LOAD_PATH

router = APIRouter(tags=["service"])


@router.get(LIVE_PATH, responses=in_any_state(Liveness))
async def live(context: Annotated[ApiContext, Depends(api_context)]) -> Response:
    """Report whether the process should go on; 503 asks for a restart."""
    return _response(live_answer(context.backend))


async def ready(context: Annotated[ApiContext, Depends(api_context)]) -> Response:
    """Report whether requests would be answered now, and the progress of the start; 503 until the first real token."""
    return _response(ready_answer(context.backend))


for path in READY_PATHS:
    router.get(path, responses=in_any_state(Readiness), include_in_schema=path == READY_PATHS[0])(ready)


@router.get(METRICS_PATH, response_class=PlainTextResponse)
async def metrics(context: Annotated[ApiContext, Depends(api_context)]) -> Response:
    """Return all series in Prometheus' text format; needs a key if API_KEY is set."""
    return Response(context.metrics.exposition(), media_type=CONTENT_TYPE)


@router.get(LOAD_PATH, response_class=PlainTextResponse)
async def metrics_load(context: Annotated[ApiContext, Depends(api_context)]) -> Response:
    """Return what runs, what waits and what is full, under vLLM's names: the few series that endpoint pickers read.

    It costs a hundredth of /metrics, and needs a key if API_KEY is set.

    Source: https://github.com/kubernetes-sigs/gateway-api-inference-extension/tree/main/docs/proposals/003-model-server-protocol
    """
    return Response(context.metrics.load_exposition(), media_type=LOAD_CONTENT_TYPE)


def _response(answer: Answer) -> Response:
    return JSONResponse(answer.body, answer.status, answer.headers)
