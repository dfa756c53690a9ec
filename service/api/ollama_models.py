"""Ollama's routes about models and the service itself.

Source: https://github.com/ollama/ollama/blob/main/docs/api.md
"""

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, Response

from service.api.answers.ollama import LoadedModels, OllamaModels, ShownModel
from service.api.answers.service import Version
from service.api.backend import ModelState
from service.api.dependencies import OpenCall, api_context
from service.api.http.call import ApiContext
from service.api.http.receive import json_body
from service.api.ollama import LATEST
from service.api.openapi.responses import BODY_ERRORS, answers
from service.api.schema.ollama import OllamaShowRequest
from service.api.served import ServedModel
from service.errors import UnknownModel
from service.text.infill import infill_of

router = APIRouter(tags=["ollama"])

# Of Ollama, whose interface this is. Clients compare it with the oldest one that they know how to speak to.
VERSION = "0.13.0"
ARCHITECTURE = "levserve"  # which names the keys of a model's facts
NEVER = "9999-12-31T23:59:59Z"


@router.get("/api/version", responses=answers(Version))
async def show_ollama_version() -> Response:
    """Return the version of Ollama that the routes below /api follow."""
    return JSONResponse({"version": VERSION})


@router.get("/api/tags", responses=answers(OllamaModels, 503))
async def list_models_like_ollama(api: Annotated[ApiContext, Depends(api_context)]) -> Response:
    """List the models that requests may name, as Ollama does.

    Deviations: sizes are 0, and digests empty.
    """
    return JSONResponse({"models": [_listed(model, name) for model in _models(api) for name in model.names]})


@router.get("/api/ps", responses=answers(LoadedModels, 503))
async def list_loaded_models(api: Annotated[ApiContext, Depends(api_context)]) -> Response:
    """List the models that are loaded, as Ollama does.

    Deviations: sizes are 0, and digests empty.
    """
    more = {"expires_at": NEVER, "size_vram": 0}
    loaded = [model for model in _models(api) if model.state == "ready"]
    models = [{**_listed(model, model.names[0]), **more, "context_length": model.max_model_len} for model in loaded]
    return JSONResponse({"models": models})


@router.post("/api/show", responses=answers(ShownModel, *BODY_ERRORS))
async def show_model(
    call: OpenCall,
    body: Annotated[OllamaShowRequest, Depends(json_body(OllamaShowRequest))],
) -> Response:
    """Describe a model, as Ollama does; one that is not loaded with what is known of it.

    Deviations: there is no Modelfile, no license, and the template is one of Jinja.
    """
    state = _found(_models(call.api), body.model)
    template, capabilities = "", []
    if state.state == "ready":
        model = await call.model(state.names[0])
        capabilities = ["embedding"] if "embeddings" in model.capabilities else []
        if isinstance(model, ServedModel):
            template = "" if model.chat_template is None else model.chat_template.source
            capabilities = _capabilities(model)
    return JSONResponse(
        {
            "license": "",
            "modelfile": "",
            "parameters": "",
            "template": template,
            "modified_at": _time(state.created),
            "details": _details(state),
            "model_info": {
                "general.architecture": ARCHITECTURE,
                "general.basename": state.names[0],
                f"{ARCHITECTURE}.context_length": state.max_model_len,
            },
            "capabilities": capabilities,
        }
    )


def _models(api: ApiContext) -> list[ModelState]:
    api.backend.check_open()
    return list(api.backend.listed())


def _found(models: list[ModelState], name: str) -> ModelState:
    """Return the model of a name, which may have the tag of the latest; raises UnknownModel."""
    for wanted in (name, name.removesuffix(LATEST)):
        if found := [model for model in models if wanted in model.names]:
            return found[0]
    raise UnknownModel(name, [known for model in models for known in model.names])


def _capabilities(model: ServedModel) -> list[str]:
    chat_template = model.chat_template
    facts = {
        "completion": True,
        "insert": infill_of(model.tokenizer) is not None,
        "thinking": model.has_thinking,
        "tools": chat_template is not None and chat_template.tool_format is not None,
    }
    return [name for name, has in facts.items() if has]


def _listed(model: ModelState, name: str) -> dict[str, Any]:
    head = {"name": name, "model": name, "modified_at": _time(model.created), "size": 0, "digest": ""}
    return {**head, "details": _details(model)}


def _details(model: ModelState) -> dict[str, Any]:
    quantization = model.facts.get("quantization", "none")
    level = model.facts.get("dtype", "") if quantization == "none" else quantization
    names = {"parent_model": "", "format": "safetensors", "family": ARCHITECTURE, "families": [ARCHITECTURE]}
    return {**names, "parameter_size": "", "quantization_level": level}


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
