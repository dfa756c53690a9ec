"""GET /v1/models and /v1/models/{id}.

Source: https://platform.openai.com/docs/api-reference/models; `max_model_len`, `root` and
`parent` are vLLM's.
"""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from service.api.dependencies import served_model
from service.api.served import Served

router = APIRouter()

OWNER = "levserve"


@router.get("/v1/models")
async def list_models(model: Annotated[Served, Depends(served_model)]) -> Response:
    """List the served models; 503 until one is ready."""
    return JSONResponse({"object": "list", "data": [_document(model, name) for name in model.names]})


@router.get("/v1/models/{model_id:path}")
async def retrieve_model(request: Request, model: Annotated[Served, Depends(served_model)]) -> Response:
    """Describe one model; its id may contain slashes."""
    # Read from the request, since for the first path parameter of a function FastAPI imports all of pydantic.v1.
    name = request.path_params["model_id"]
    model.check_name(name)
    return JSONResponse(_document(model, name))


def _document(model: Served, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": OWNER,
        "root": model.name,
        "parent": None,
        "max_model_len": model.max_model_len,
        **model.facts,
    }
