"""GET /server_info, /model_info and /v1/loads, and their other names: what SGLang's router and smg ask of a worker.

Deviations: where there are several models, `?model=` names the one that is described; without it, that is the first,
and loads are those of all models together.

Source: https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/entrypoints/http_server.py,
https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/entrypoints/v1_loads.py
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse, Response

from service.api.answers.service import EarlierLoad, Loads, ModelInfo, ServerInfo
from service.api.backend import ModelState
from service.api.dependencies import api_context
from service.api.description import installed_version
from service.api.http.call import ApiContext
from service.api.http.query import query_of
from service.api.openapi.responses import MODEL_ERRORS, answers, json_content, list_of
from service.api.schema.loads import LoadsQuery
from service.errors import UnknownModel
from service.observability.model_load import ModelLoad

router = APIRouter()

NO_SOURCES = {"type": "array", "maxItems": 0, "items": {}}


LoadsOf = Annotated[LoadsQuery, Depends(query_of(LoadsQuery))]


@router.get("/model_info", tags=["models"], responses=answers(ModelInfo, 400, *MODEL_ERRORS))
async def describe_model(api: Annotated[ApiContext, Depends(api_context)], query: LoadsOf) -> Response:
    """Describe a model as SGLang does."""
    return JSONResponse(_model_info(_described(api, query.model)))


@router.get("/server_info", tags=["service"], responses=answers(ServerInfo, 400, *MODEL_ERRORS))
async def describe_server(api: Annotated[ApiContext, Depends(api_context)], query: LoadsOf) -> Response:
    """Describe the service and its load as SGLang does."""
    model = _described(api, query.model)
    load = _total(_loads(api, query.model))
    info = _model_info(model)
    return JSONResponse(
        {
            **info,
            "version": installed_version(),
            "dp_size": 1,
            "is_embedding": not info["is_generation"],
            "max_model_len": model.max_model_len,
            "max_running_requests": load.num_slots,
            "max_total_num_tokens": load.num_pages * load.page_size,
            "page_size": load.page_size,
            "internal_states": [_core(load)],
        }
    )


@router.get("/v1/loads", tags=["service"], responses=answers(Loads, 400, *MODEL_ERRORS))
async def list_loads(api: Annotated[ApiContext, Depends(api_context)], query: LoadsOf) -> Response:
    """Return what runs, what waits and what is full, as SGLang does.

    Deviations: the parts `memory`, `spec`, `lora` and `disagg` are left out, as SGLang does where it has none of them.

    Source: https://github.com/sgl-project/sglang/blob/main/python/sglang/srt/entrypoints/v1_loads.py
    """
    load = _total(_loads(api, query.model))
    queues: dict[str, Any] = {}
    if query.sections & {"queues", "all"}:
        queues = {"queues": {"waiting": load.num_waiting, "grammar": 0, "paused": 0, "retracted": 0}}
    return JSONResponse(
        {
            "timestamp": datetime.now(UTC).isoformat(),
            "version": installed_version(),
            "dp_rank_count": 1,
            "loads": [_core(load) | queues],
            "aggregate": {
                "total_running_reqs": load.num_running,
                "total_waiting_reqs": load.num_waiting,
                "total_reqs": load.num_running + load.num_waiting,
                "avg_token_usage": load.kv_cache_usage,
                "avg_utilization": _utilization(load),
            },
        }
    )


@router.get("/get_load", tags=["service"], responses=list_of(EarlierLoad, 400, *MODEL_ERRORS))
async def list_loads_as_earlier(api: Annotated[ApiContext, Depends(api_context)], query: LoadsOf) -> Response:
    """Return what runs and what waits in the form that routers before /v1/loads read."""
    load = _total(_loads(api, query.model))
    return JSONResponse(
        [
            {
                "dp_rank": 0,
                "num_reqs": load.num_running + load.num_waiting,
                "num_waiting_reqs": load.num_waiting,
                "num_tokens": load.num_used_pages * load.page_size,
            }
        ]
    )


router.get("/get_model_info", include_in_schema=False)(describe_model)
router.get("/get_server_info", include_in_schema=False)(describe_server)
router.get("/loads", include_in_schema=False)(list_loads)


def _described(api: ApiContext, name: str | None) -> ModelState:
    """Return the model of a name, or the first.

    Raises:
        NotReady, Draining, EngineStopped: no model can answer now.
        UnknownModel: no model has this name.
    """
    api.backend.check_open()
    models = api.backend.listed()
    found = next((model for model in models if name is None or name in model.names), None)
    if found is None:
        raise UnknownModel(name or "", [known for model in models for known in model.names])
    return found


@router.get("/kv_event_sources", tags=["service"], responses={200: {"content": json_content(NO_SOURCES)}})
async def list_kv_event_sources() -> Response:
    """Return where events of the KV cache are published: nowhere.

    Source: https://github.com/vllm-project/vllm/blob/main/vllm/entrypoints/serve/kv_events/api_router.py
    """
    return JSONResponse([])


def _model_info(model: ModelState) -> dict[str, Any]:
    # A model that was never loaded may be an encoder, but most are not.
    is_generation = "completions" in model.facts.get("capabilities", ("completions",))
    return {
        "model_path": model.names[0],
        "served_model_name": model.names[0],
        "tokenizer_path": model.names[0],
        "is_generation": is_generation,
        "preferred_sampling_params": None,
        "disaggregation_mode": "null",  # SGLang's word for none
        "has_image_understanding": False,
        "has_audio_understanding": False,
    }


def _loads(api: ApiContext, name: str | None) -> Iterable[ModelLoad]:
    """Return the loads of the model of a name, or of all; raises as `_described`."""
    loads = api.metrics.loads()
    own_name = _described(api, name).names[0]
    return loads.values() if name is None else [loads.get(own_name, ModelLoad())]


def _total(loads: Iterable[ModelLoad]) -> ModelLoad:
    """Return the load of models together; pages are counted as tokens where their sizes differ."""
    loads = list(loads)
    page_size = loads[0].page_size if len({load.page_size for load in loads}) == 1 else 1
    return ModelLoad(
        num_running=sum(load.num_running for load in loads),
        num_waiting=sum(load.num_waiting for load in loads),
        num_slots=sum(load.num_slots for load in loads),
        page_size=page_size,
        num_pages=sum(load.num_pages * load.page_size for load in loads) // max(page_size, 1),
        num_used_pages=sum(load.num_used_pages * load.page_size for load in loads) // max(page_size, 1),
        updated_at=max((load.updated_at for load in loads), default=0.0),
    )


def _core(load: ModelLoad) -> dict[str, Any]:
    return {
        "timestamp": load.updated_at,
        "dp_rank": 0,
        "num_running_reqs": load.num_running,
        "num_waiting_reqs": load.num_waiting,
        "num_total_reqs": load.num_running + load.num_waiting,
        "num_used_tokens": load.num_used_pages * load.page_size,
        "max_total_num_tokens": load.num_pages * load.page_size,
        "max_running_requests": load.num_slots,
        "token_usage": load.kv_cache_usage,
        "utilization": _utilization(load),
    }


def _utilization(load: ModelLoad) -> float:
    """Return the share of slots that sequences hold."""
    return load.num_running / load.num_slots if load.num_slots else 0.0
