"""The tables of docs/reference/fields.md: every field of a body, and the test that proves it.

Their fields are those of their Python clients, which they generate from their own specifications.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from anthropic.types import message_count_tokens_params, message_create_params
from openai.types import (
    batch_create_params,
    batch_list_params,
    completion_create_params,
    decision_create_params,
    embedding_create_params,
    file_create_params,
    file_list_params,
)
from openai.types.audio import transcription_create_params, translation_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from service.api.files import FILE_FIELD
from service.api.schema.audio import AudioRequest
from service.api.schema.batches import BatchQuery, BatchRequest, FileFields, FileQuery
from service.api.schema.chat import ChatCompletionRequest
from service.api.schema.completions import CompletionRequest
from service.api.schema.decisions import DecisionsRequest
from service.api.schema.embeddings import EmbeddingsRequest
from service.api.schema.messages import CountTokensRequest, MessagesRequest
from service.api.schema.responses import ResponsesRequest
from service.api.schema.wire import WireObject

ROOT = Path(__file__).parents[1]
PROOFS = ROOT / "docs/reference/field_tests.json"


# In the names of tests in which the body is refused.
REFUSAL = re.compile("refus|contradict|not_finite|range_only|logged|cannot|hostile|no_field|not_a_request")


@dataclass(frozen=True)
class Route:
    """A route, our model of its body, and that of OpenAI's or Anthropic's client."""

    path: str
    body: type[WireObject]
    params: Any
    method: str = "POST"
    has_file: bool = False  # whether a form carries a file besides the fields of the body


ROUTES = (
    Route("/v1/chat/completions", ChatCompletionRequest, chat_create_params.CompletionCreateParamsBase),
    Route("/v1/completions", CompletionRequest, completion_create_params.CompletionCreateParamsBase),
    Route("/v1/responses", ResponsesRequest, response_create_params.ResponseCreateParamsBase),
    Route("/v1/decisions", DecisionsRequest, decision_create_params.DecisionCreateParams),
    Route("/v1/messages", MessagesRequest, message_create_params.MessageCreateParamsBase),
    Route(
        "/v1/messages/count_tokens",
        CountTokensRequest,
        message_count_tokens_params.MessageCountTokensParams,
    ),
    Route(
        "/v1/audio/transcriptions",
        AudioRequest,
        transcription_create_params.TranscriptionCreateParamsBase,
        has_file=True,
    ),
    Route(
        "/v1/audio/translations",
        AudioRequest,
        translation_create_params.TranslationCreateParams,
        has_file=True,
    ),
    Route("/v1/files", FileFields, file_create_params.FileCreateParams, has_file=True),
    Route("/v1/files", FileQuery, file_list_params.FileListParams, method="GET"),
    Route("/v1/batches", BatchRequest, batch_create_params.BatchCreateParams),
    Route("/v1/batches", BatchQuery, batch_list_params.BatchListParams, method="GET"),
    Route("/v1/embeddings", EmbeddingsRequest, embedding_create_params.EmbeddingCreateParams),
)


def support_tables() -> str:
    """Return the tables of all routes: what is served, what is refused, and folded what is accepted without effect."""
    return "\n\n".join("\n".join(_section(route)) for route in ROUTES)


def served_fields(route: Route) -> set[str]:
    """Return the names of the fields that have an effect on a route."""
    names = {field.alias or name for name, field in route.body.model_fields.items()}
    return names | ({"file"} if route.has_file else set())


def _section(route: Route) -> Iterator[str]:
    served = served_fields(route)
    # Streaming has parameters of its own.
    theirs = {*route.params.__annotations__} | (served & {"stream"})
    if unknown := theirs - served - route.body.refused.keys() - route.body.hints.keys():
        raise ValueError(f"{route.path} neither enforces nor refuses nor ignores {sorted(unknown)}")
    yield f"## {route.method} {route.path}\n"
    yield "| served | meaning | test |\n|---|---|---|"
    for name in sorted(served, key=lambda name: (name not in theirs, name)):
        mark = "" if name in theirs else " (extension)"
        yield f"| `{name}`{mark} | {_meaning(route.body, name)} | {_link(route, name)} |"
    if route.body.refused:
        yield "\n| refused | but for these values | instead |\n|---|---|---|"
        for name, values in sorted(route.body.refused.items()):
            yield f"| `{name}` | {_values(values)} | {route.body.remedies.get(name, '')} |"
    if route.body.hints:
        yield '\n<details markdown="1"><summary>Accepted without effect</summary>\n'
        yield ", ".join(f"`{name}`" for name in sorted(route.body.hints)) + "\n\n</details>"


def _meaning(body: type[WireObject], name: str) -> str:
    if name == "file":
        return FILE_FIELD["description"]
    schema = body.model_json_schema()["properties"][name]
    return schema["description"].replace("\n", " ")


def _values(values: tuple[Any, ...] | None) -> str:
    return ", ".join(f"`{json.dumps(value)}`" for value in values or ())


def _link(route: Route, name: str) -> str:
    """Return a link to the test that proves a field, which `scripts.record_fields` has found.

    It sends the field to this route, or to another one whose body has it from the same class.

    Raises:
        ValueError: no test of the API sends the field, or it is gone.
    """
    bodies = [
        route.body,
        *(other.body for other in ROUTES if _declaring(other.body, name) is _declaring(route.body, name)),
    ]
    found = [test for body in bodies if (test := _proofs().get(body.__name__, {}).get(name)) is not None]
    if not found:
        raise ValueError(f"no test sends '{name}' to {route.path}; add one, and run scripts.record_fields")
    best = min(found, key=is_refusal)
    path, _, function = best.partition("::")
    function = function.partition("[")[0]
    if not (ROOT / path).exists() or f"def {function}(" not in (ROOT / path).read_text():
        raise ValueError(f"{best}, which proves '{name}', is gone; run scripts.record_fields")
    return f"[{function.removeprefix('test_').replace('_', ' ')}](../../{path})"


def is_refusal(test: str) -> bool:
    """Return whether a test is one in which the body is refused, by its name."""
    return REFUSAL.search(test) is not None


def _declaring(body: type[WireObject], name: str) -> type | None:
    """Return the class that declares a field of a body."""
    [attribute] = [key for key, field in body.model_fields.items() if (field.alias or key) == name] or [None]
    return next((kind for kind in reversed(body.mro()) if attribute in getattr(kind, "__annotations__", {})), None)


@cache
def _proofs() -> dict[str, dict[str, str]]:
    return json.loads(PROOFS.read_text())
