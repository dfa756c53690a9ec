"""The operator's routes, as the document describes them; the server answers them, without the API."""

from typing import Any, Literal, NotRequired, TypedDict

from service.api.answers.service import Error
from service.api.openapi.responses import json_content, reference
from service.api.schema.adapters import AdapterRequest

SCHEME = "operator"  # the name of the security scheme
SECURITY = {"type": "http", "scheme": "bearer", "description": "ADMIN_API_KEY; without it the routes do not exist."}


class AdministeredModel(TypedDict):
    """A model as an operator sees it."""

    id: str
    aliases: list[str]
    uri: str
    """Of the checkpoint that is loaded, or will be."""
    adapter_uri: str | None
    """Of the adapter that is merged into it, or takes a slot of its base; null for none."""
    state: Literal["available", "loading", "ready", "unloading"]
    is_leaving: bool
    """Whether it takes no further requests and goes when the last one has ended."""
    is_complete: bool
    """Whether it is ready and nothing is left to load or compile."""
    keep_loaded: bool
    """Whether no other model takes its place."""
    memory_bytes: int
    """On each device; 0 while it has no room there."""
    open_requests: int
    waiting_requests: int
    last_used_at: float | None
    """Unix time in seconds; null if it was never loaded."""
    prompt_tokens: int
    generation_tokens: int
    draft_tokens: int
    """Tokens that were drafted, to be verified several in a step."""
    accepted_tokens: int
    """Drafted tokens that were accepted."""
    share_of_read_speed: float | None
    """Of the speed at which this machine reads memory, the part that the latest decode steps reached while they read
    weights; null on accelerators, without native code, for models with experts, and before the first step."""
    starts: int
    start_seconds: float | None
    """Of the last load; null if there was none."""
    progress: dict[str, Any] | None
    """Of a load under way."""
    failure: dict[str, Any] | None
    """`reason` and `seconds_ago` of a last load that failed."""
    was_loaded: NotRequired[bool | None]
    """In the answer to an unload: whether it was in memory or loading."""


class AdministeredModels(TypedDict):
    """The answer of GET /admin/models."""

    object: Literal["list"]
    data: list[AdministeredModel]


class RemovedAdapter(TypedDict):
    """The answer of POST /v1/unload_lora_adapter."""

    id: str
    object: Literal["model"]
    deleted: bool


def admin_paths() -> dict[str, dict[str, Any]]:
    """Return the operator's routes by path."""
    model, models = reference(AdministeredModel), reference(AdministeredModels)
    return {
        "/admin/stats": {"get": _operation("Return the start's timeline and the models in use", {"type": "object"})},
        "/admin/models": {"get": _operation("List the states of all models", models)},
        "/admin/load/{model}": {
            "post": _of_model("Load a model; 200 if it is ready, else 202 at once", model, 200, 202)
        },
        "/admin/unload/{model}": {
            "post": _of_model("Unload a model once its open requests have ended, or end its load", model, 200)
        },
        "/v1/load_lora_adapter": {
            "post": _of_adapter("Serve an adapter of the catalogue's folder under a name", model)
        },
        "/v1/unload_lora_adapter": {
            "post": _of_adapter("End the serving of an adapter that was loaded so", reference(RemovedAdapter))
        },
    }


def _of_model(summary: str, schema: dict[str, Any], *statuses: int) -> dict[str, Any]:
    name = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    name["description"] = "Its name or an alias; slashes stay as they are."
    return {**_operation(summary, schema, *statuses), "parameters": [name]}


def _of_adapter(summary: str, schema: dict[str, Any]) -> dict[str, Any]:
    operation = _operation(summary, schema)
    operation["requestBody"] = {"required": True, "content": json_content(reference(AdapterRequest))}
    operation["responses"]["400"] = {"content": json_content(reference(Error))}
    return operation


def _operation(summary: str, schema: dict[str, Any], *statuses: int) -> dict[str, Any]:
    answers = {
        str(status): {"description": "The answer.", "content": json_content(schema)} for status in statuses or (200,)
    }
    errors = {str(status): {"content": json_content(reference(Error))} for status in (401, 404, 503)}
    return {
        "operationId": summary.partition(";")[0].lower().replace("'", "").replace(",", "").replace(" ", "_"),
        "summary": summary,
        "description": f"{summary}.",
        "tags": ["operator"],
        "security": [{SCHEME: []}],
        "responses": answers | errors,
    }
