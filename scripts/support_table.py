"""The support table of docs/openai.md: every field of OpenAI's, Anthropic's and our bodies, and the test that tries it.

Their fields are those of their Python clients, which they generate from their own specifications.
"""

import ast
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
from service.api.schema.embeddings import EmbeddingsRequest
from service.api.schema.messages import CountTokensRequest, MessagesRequest
from service.api.schema.responses import ResponsesRequest
from service.api.schema.wire import ANY, WireObject

ROOT = Path(__file__).parents[1]
# Where a field is tried through a route; the earlier files first.
WITHOUT_EFFECT = "tests/api/schema/test_refused_fields.py"  # tries every refused field and every hint of every route
TESTS = (
    "tests/api/*.py",
    "tests/api/schema/test_sampling.py",
    "tests/api/generation/*.py",
    "tests/api/hearing/*.py",
    "tests/api/vectors/*.py",
    "tests/api/http/*.py",
    "tests/contract/*.py",
    "tests/api/schema/*.py",
)


@dataclass(frozen=True)
class Route:
    """A route, our model of its body, and that of OpenAI's or Anthropic's client."""

    path: str
    body: type[WireObject]
    params: Any
    mark: str  # in the names of test files that try this route first
    method: str = "POST"
    has_file: bool = False  # whether a form carries a file besides the fields of the body


ROUTES = (
    Route("/v1/chat/completions", ChatCompletionRequest, chat_create_params.CompletionCreateParamsBase, "chat"),
    Route("/v1/completions", CompletionRequest, completion_create_params.CompletionCreateParamsBase, "completions"),
    Route("/v1/responses", ResponsesRequest, response_create_params.ResponseCreateParamsBase, "responses"),
    Route("/v1/messages", MessagesRequest, message_create_params.MessageCreateParamsBase, "test_messages"),
    Route(
        "/v1/messages/count_tokens",
        CountTokensRequest,
        message_count_tokens_params.MessageCountTokensParams,
        "test_messages",
    ),
    Route(
        "/v1/audio/transcriptions",
        AudioRequest,
        transcription_create_params.TranscriptionCreateParamsBase,
        "audio",
        has_file=True,
    ),
    Route(
        "/v1/audio/translations",
        AudioRequest,
        translation_create_params.TranslationCreateParams,
        "audio",
        has_file=True,
    ),
    Route("/v1/files", FileFields, file_create_params.FileCreateParams, "files", has_file=True),
    Route("/v1/files", FileQuery, file_list_params.FileListParams, "files", method="GET"),
    Route("/v1/batches", BatchRequest, batch_create_params.BatchCreateParams, "batches"),
    Route("/v1/batches", BatchQuery, batch_list_params.BatchListParams, "batches", method="GET"),
    Route("/v1/embeddings", EmbeddingsRequest, embedding_create_params.EmbeddingCreateParams, "embeddings"),
)


def support_tables() -> str:
    """Return the tables of all routes."""
    return "\n\n".join("\n".join(_table(route)) for route in ROUTES)


def _table(route: Route) -> Iterator[str]:
    ours = {field.alias or name for name, field in route.body.model_fields.items()} | (
        {"file"} if route.has_file else set()
    )
    # Streaming has parameters of its own.
    theirs = {*route.params.__annotations__} | (ours & {"stream"})
    others = route.body.refused.keys() | route.body.hints.keys()
    if unknown := theirs - ours - others:
        raise ValueError(f"{route.path} neither enforces nor refuses nor ignores {sorted(unknown)}")
    yield f"## {route.method} {route.path}\n"
    yield "| field | | test |\n|---|---|---|"
    for name in sorted(theirs):
        meaning = _meaning(route.body, name) if name in ours else _without_effect(route.body, name)
        yield f"| `{name}` | {meaning} | {_link(route, name)} |"
    if extensions := sorted((ours | others) - theirs):
        yield "\n| extension | | test |\n|---|---|---|"
        for name in extensions:
            meaning = _meaning(route.body, name) if name in ours else _without_effect(route.body, name)
            yield f"| `{name}` | {meaning} | {_link(route, name)} |"


def _meaning(body: type[WireObject], name: str) -> str:
    if name == "file":
        return FILE_FIELD["description"]
    schema = body.model_json_schema()["properties"][name]
    return schema["description"].replace("\n", " ")


def _without_effect(body: type[WireObject], name: str) -> str:
    is_refused = name in body.refused
    values = body.refused[name] if is_refused else body.hints[name]
    if values is ANY:
        return "Accepted; nothing is lost without it."
    accepted = " or ".join(f"`{json.dumps(value)}`" for value in values)
    remedy = f" Instead: {body.remedies[name]}" if name in body.remedies else ""
    word = "*Refused*" if is_refused else "*Ignored*"
    return (f"{word}, except {accepted}, which changes nothing." if accepted else f"{word}.") + remedy


def _link(route: Route, name: str) -> str:
    """Return a link to a test of refusals, or to the first that sends the field, preferably one of its route."""
    if name in route.body.refused:
        return f"[a field without effect is refused by its name](../{WITHOUT_EFFECT})"
    if name in route.body.hints:
        return f"[a hint is accepted and named in the answer](../{WITHOUT_EFFECT})"
    pattern = re.compile(rf"""["']{name}["']|\b{name}=""")
    found = [(path, test) for path, test, source in _tests() if name in source and pattern.search(source)]
    others = [other.mark for other in ROUTES if other.mark != route.mark]
    found.sort(key=lambda place: (route.mark not in place[0], any(mark in place[0] for mark in others)))
    if not found:
        raise ValueError(f"no test sends '{name}' to {route.path}")
    path, test = found[0]
    return f"[{test.removeprefix('test_').replace('_', ' ')}](../{path})"


@cache
def _tests() -> list[tuple[str, str, str]]:
    """Return path, name and source of every test that may send a field, with the constants that it uses."""
    found = []
    for pattern in TESTS:
        for path in sorted(ROOT.glob(pattern)):
            text = path.read_text()
            lines = text.splitlines()
            tree = ast.parse(text)
            constants = {
                target.id: _lines(lines, node.lineno, node.end_lineno)
                for node in tree.body
                if isinstance(node, ast.Assign)
                for target in node.targets
                if isinstance(target, ast.Name)
            }
            for node in tree.body:
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                    used = {part.id for part in ast.walk(node) if isinstance(part, ast.Name)} & constants.keys()
                    source = [_lines(lines, first, node.end_lineno), *(constants[name] for name in sorted(used))]
                    found.append((str(path.relative_to(ROOT)), node.name, "\n".join(source)))
    return found


def _lines(lines: list[str], first: int, last: int | None) -> str:
    return "\n".join(lines[first - 1 : last])
