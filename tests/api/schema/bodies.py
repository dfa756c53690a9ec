"""Bodies made from the JSON schemas of the interface: the least one of each object, and values at and beyond limits."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema

from service.api.schema import (
    adapters,
    audio,
    batches,
    chat,
    completions,
    decisions,
    embeddings,
    generation,
    loads,
    message_blocks,
    messages,
    ollama,
    pooling,
    rerank,
    response_input,
    response_tools,
    responses,
    stored_responses,
    structured,
    tokenize,
    tools,
)
from service.api.schema.wire import WireObject

# Every module of schemas is imported here, so that each object that they declare is found.
MODULES = (
    adapters, audio, batches, chat, completions, decisions, embeddings, generation, loads, message_blocks, messages,
    ollama, pooling, rerank, response_input, response_tools, responses, stored_responses, structured, tokenize, tools,
)  # fmt: skip
# Common parts of several objects, and the form of recordings, which is no JSON.
PARTS_OF_OBJECTS = {
    "SamplingFields", "SharedFields", "GenerationRequest", "VariableFields", "TemplateFields", "EncoderRequest",
    "PairsRequest", "Option", "OllamaRequest", "Question", "_Readable", "AudioRequest",
}  # fmt: skip
MAX_CHECKED_ITEMS = 4096  # of a list against a JSON schema, for the time that it takes

MESSAGE = {"role": "user", "content": "hi"}
SCHEMA = {"name": "s", "schema": {"type": "object"}}


def tool(index=0):
    return {"type": "function", "function": {"name": f"f{index}"}}


def flat_tool(index=0):
    return {"type": "function", "name": f"f{index}"}


def objects(kind=WireObject) -> Iterator[type[WireObject]]:
    """Yield every class of an object that clients send."""
    modules = {module.__name__ for module in MODULES}
    for child in kind.__subclasses__():
        if child.__module__ in modules and child.__name__ not in PARTS_OF_OBJECTS:
            yield child
        yield from objects(child)


OBJECTS = tuple(dict.fromkeys(objects()))


@cache
def document(kind: type[WireObject]) -> dict[str, Any]:
    return kind.model_json_schema()


def least(kind: type[WireObject]) -> dict[str, Any]:
    """Return the smallest object of a class that means something."""
    return LEAST.get(kind) or _least(document(kind), document(kind).get("$defs", {}))


def options(schema: dict[str, Any], definitions: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the alternatives of a schema, without null and with references followed."""
    if "$ref" in schema:
        return options(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if alternatives:
        return [found for option in alternatives for found in options(option, definitions)]
    return [] if schema.get("type") == "null" else [schema]


def _least(schema: dict[str, Any], definitions: dict[str, Any]) -> Any:
    schema = options(schema, definitions)[0]
    if "const" in schema or "enum" in schema:
        return schema.get("const", schema.get("enum", [None])[0])
    match schema.get("type"):
        case "object" | None:
            required = schema.get("required", ())
            return {name: _least(schema["properties"][name], definitions) for name in required}
        case "array":
            return [_least(schema["items"], definitions)] * schema.get("minItems", 0)
        case "string":
            return "a" * schema.get("minLength", 1)
        case "boolean":
            return True
        case _:
            return schema.get("minimum", 1)


def within(schema: dict[str, Any], definitions: dict[str, Any]) -> Iterator[Any]:
    """Yield values at the limits that a schema states."""
    for option in options(schema, definitions):
        if "const" in option or "enum" in option:
            yield from option.get("enum", [option.get("const")])
            continue
        match option.get("type"):
            case "integer" | "number":
                step = 1 if option["type"] == "integer" else 0.01
                yield option.get("minimum", option.get("exclusiveMinimum", -step) + step)
                yield option.get("maximum", option.get("exclusiveMaximum", 100 + step) - step)
            case "string" if "pattern" not in option:
                yield "a" * option.get("minLength", 0)
                yield "a" * option.get("maxLength", 5000)
            case "boolean":
                yield from (True, False)
            case "array" if option.get("maxItems", 0) <= MAX_CHECKED_ITEMS:
                item = _least(option.get("items", {}), definitions)
                yield [item] * option.get("minItems", 0)
                yield [item] * option.get("maxItems", 3)
            case "object":
                yield _least(option, definitions)


def beyond(schema: dict[str, Any], definitions: dict[str, Any]) -> Iterator[Any]:
    """Yield values just beyond the limits that a schema states, and values of other types."""
    candidates: list[Any] = [7, 1.5, "7", True, [], [7], {}, "", "other", "a b", [[1.5]]]
    for option in options(schema, definitions):
        for name, step in (("minimum", -1), ("maximum", 1)):
            if name in option:
                candidates.append(option[name] + (step if option["type"] == "integer" else step / 100))
        candidates += [option[name] for name in ("exclusiveMinimum", "exclusiveMaximum") if name in option]
        if "maxLength" in option:
            candidates.append("a" * (option["maxLength"] + 1))
        if option.get("type") == "array":
            item = _least(option.get("items", {}), definitions)
            if option.get("minItems"):
                candidates.append([item] * (option["minItems"] - 1))
            if option.get("maxItems", MAX_CHECKED_ITEMS) < MAX_CHECKED_ITEMS:
                candidates.append([item] * (option["maxItems"] + 1))
            candidates += [[item, wrong] for wrong in (7, 1.5, {}, [[]])]
    is_valid = jsonschema.Draft202012Validator({"$defs": definitions} | schema).is_valid
    yield from (value for value in candidates if not is_valid(value))


# Where what a schema requires is not enough.
LEAST: dict[type[WireObject], dict[str, Any]] = {
    chat.ChatCompletionRequest: {"model": "m", "messages": [MESSAGE]},
    responses.ResponsesRequest: {"model": "m", "input": "hi"},
    tokenize.TokenizeRequest: {"messages": [MESSAGE]},
    chat.ContentPart: {"type": "text", "text": "a"},
    pooling.EmbeddingRequest: {"content": "hi"},
    messages.CountTokensRequest: {"model": "m", "messages": [MESSAGE]},
    messages.MessagesRequest: {"model": "m", "messages": [MESSAGE], "max_tokens": 5},
    messages.MessagesTool: {"name": "f"},
    response_input.InputPart: {"type": "input_text", "text": "a"},
    decisions.DecisionPart: {"type": "input_text", "text": "a"},
    decisions.DecisionsRequest: {
        "model": "m",
        "input": "hi",
        "questions": [{"type": "predicate", "instructions": "a"}],
    },
    response_tools.NamespacedTool: flat_tool(),
    response_tools.ResponseTool: flat_tool(),
    response_tools.NamedTool: flat_tool(),
    response_tools.ChosenTool: flat_tool(),
    tools.ToolChoice: tool(),
}
