"""GET /v1/models and /v1/models/{id}.

Source: https://platform.openai.com/docs/api-reference/models; `max_model_len`, `root` and
`parent` are vLLM's, `state` and `capabilities` this project's.
"""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response

from service.api.answers.service import Model, ModelList
from service.api.backend import ModelState
from service.api.dependencies import api_context
from service.api.http.call import ApiContext
from service.api.openapi.responses import MODEL_ERRORS, answers
from service.errors import UnknownModel

router = APIRouter(tags=["models"])

OWNER = "levserve"
# Declared here and read from the request, since for the first parameter of a function FastAPI imports all of
# pydantic.v1: 23 ms of a start.
PATH = {"parameters": [{"name": "model_id", "in": "path", "required": True, "schema": {"type": "string"}}]}


@router.get("/v1/models", responses=answers(ModelList, 503))
async def list_models(api: Annotated[ApiContext, Depends(api_context)]) -> Response:
    """List the models that requests may name; 503 until the service can load or answer one."""
    data = [_document(model, name) for model in _models(api) for name in model.names]
    return JSONResponse({"object": "list", "data": data})


@router.get("/v1/models/{model_id:path}", responses=answers(Model, *MODEL_ERRORS), openapi_extra=PATH)
async def retrieve_model(request: Request, api: Annotated[ApiContext, Depends(api_context)]) -> Response:
    """Describe one model; its id may contain slashes."""
    name = request.path_params["model_id"]
    models = _models(api)
    found = next((model for model in models if name in model.names), None)
    if found is None:
        raise UnknownModel(name, [known for model in models for known in model.names])
    return JSONResponse(_document(found, name))


def _models(api: ApiContext) -> Sequence[ModelState]:
    api.backend.check_open()
    return api.backend.listed()


def _document(model: ModelState, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": OWNER,
        "root": model.names[0],
        "parent": model.parent,
        "max_model_len": model.max_model_len,
        "state": model.state,
        **model.facts,
    }
