"""Schemas of tools as clients send them: what cannot be enforced is named, and refused only where calls promise it."""

import json
import random

import jsonschema
import pytest

from service.api.http.ignored import MAX_NAME_CHARS
from service.text.chat_template import ChatTemplate
from tests.api.scripted_engine import MODEL, TOKENIZER, Service, tokens
from tests.api.test_structured import text_of
from tests.api.test_tools import TEMPLATES, allowed, call_of, choice_of, service_of

pytestmark = pytest.mark.anyio

HEADER = "x-levserve-ignored"
PARAMETERS = "tools[].function.parameters"
REQUIRED, NAMED = "required", {"type": "function", "function": {"name": "f"}}
LOOKAHEAD = {"type": "string", "pattern": "^(?!x).*$"}

# What a property's schema has, what of it the answer names, and a schema that calls satisfy all the same.
KEYWORDS = {
    "a pattern with lookahead": (LOOKAHEAD, ["pattern"], {"type": "string"}),
    "uniqueItems": ({"type": "array", "maxItems": 2, "uniqueItems": True}, ["uniqueItems"], {"type": "array"}),
    "propertyNames": (
        {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "integer"}},
        ["propertyNames"],
        {"type": "object", "additionalProperties": {"type": "integer"}},
    ),
    "not": ({"type": "integer", "not": {"const": 3}}, ["not"], {"type": "integer"}),
    "oneOf": (
        {"oneOf": [{"type": "string", "maxLength": 3}, {"type": ["string", "integer"]}]},
        ["oneOf"],
        {"type": ["string", "integer"]},
    ),
    "if": (
        {"type": "integer", "if": {"minimum": 1}, "then": {"maximum": 4}, "else": {"maximum": 0}},
        ["if", "then", "else"],
        {"type": "integer"},
    ),
    "contentEncoding": ({"type": "string", "contentEncoding": "base64"}, ["contentEncoding"], {"type": "string"}),
    "dependentRequired": ({"type": "object", "dependentRequired": {"a": ["b"]}}, ["dependentRequired"], {}),
    "dependentSchemas": ({"type": "object", "dependentSchemas": {"a": {}}}, ["dependentSchemas"], {}),
    "an unknown format": ({"type": "string", "format": "binary"}, ["format"], {"type": "string"}),
    "multipleOf 0.01": ({"type": "number", "multipleOf": 0.01}, ["multipleOf"], {"type": "number"}),
    "maxLength 524288": ({"type": "string", "maxLength": 524288}, ["maxLength"], {"type": "string"}),
    "maxItems": ({"type": "array", "items": {"enum": [1]}, "maxItems": 10**6}, ["maxItems"], {"items": {"enum": [1]}}),
    "patternProperties": (
        {"type": "object", "patternProperties": {"^(?!x)": {}}, "additionalProperties": False},
        ["patternProperties", "additionalProperties"],
        {"type": "object"},
    ),
    "a remote reference": ({"$ref": "https://example.com/a.json"}, ["$ref"], {}),
    "a reference that leads nowhere": ({"$ref": "#/$defs/missing"}, ["$ref"], {}),
    "a keyword of no draft": ({"type": "boolean", "widget": "switch"}, ["widget"], {"type": "boolean"}),
    "nullable beside no type": ({"enum": ["a"], "nullable": True}, ["nullable"], {"enum": ["a", None]}),
}
EXACT = {
    "nullable": ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
    "oneOf that is exclusive": ({"oneOf": [{"type": "integer"}, {"type": "null"}]}, {"type": ["integer", "null"]}),
    "items as a list": (
        {"type": "array", "items": [{"type": "integer"}], "additionalItems": False},
        {"type": "array", "prefixItems": [{"type": "integer"}], "items": False},
    ),
    "nulls": ({"type": "integer", "minimum": None, "description": None}, {"type": "integer"}),
}


def tool_with(part, **function):
    parameters = {"type": "object", "properties": {"v": part}, "required": ["v"], "additionalProperties": False}
    return call_of(parameters=parameters, **function)


async def answer_with(tools, template="hermes", **fields):
    service = service_of("x", template=template, max_model_len=10**7)
    return service, await service.chat(tools=tools, **fields)


def arguments_of(service, rng, name="f"):
    """Return the arguments of a random call."""
    constraint = service.engine.last.request.constraint
    for token_id in tokens(f'<tool_call>{{"name": "{name}", "arguments": '):
        constraint.accept(token_id)
    arguments, end = json.JSONDecoder().raw_decode(text := text_of(constraint, rng))
    assert text[end:].startswith("}")
    return arguments


@pytest.mark.parametrize(("part", "left_out", "relaxed"), KEYWORDS.values(), ids=KEYWORDS)
async def test_a_tool_that_may_be_called_has_any_schema_and_the_answer_names_what_calls_may_break(
    part, left_out, relaxed
):
    for choice in (None, "auto", allowed("auto", "f")):
        service, response = await answer_with([tool_with(part)], tool_choice=choice)
        assert response.status_code == 200, response.text
        assert response.headers[HEADER] == ", ".join(f"{PARAMETERS}.properties.v.{name}" for name in left_out)
    for seed in range(3):
        _, response = await answer_with([tool_with(part)])
        service, _ = await answer_with([tool_with(part)])
        arguments = arguments_of(service, random.Random(seed))
        jsonschema.validate(arguments, {"required": ["v"], "properties": {"v": relaxed}})


# Which no value violates.
ANNOTATIONS = {"contentEncoding", "an unknown format"}
CONSTRAINTS = {name: case for name, case in KEYWORDS.items() if name not in ANNOTATIONS}


@pytest.mark.parametrize("name", sorted(ANNOTATIONS))
async def test_an_annotation_refuses_no_schema_that_calls_must_satisfy(name):
    for fields in ({"tool_choice": REQUIRED}, {"tool_choice": NAMED}):
        _, response = await answer_with([tool_with(KEYWORDS[name][0])], **fields)
        assert response.status_code == 200, response.text


@pytest.mark.parametrize(("part", "left_out", "_relaxed"), CONSTRAINTS.values(), ids=CONSTRAINTS)
async def test_a_schema_that_calls_must_satisfy_is_refused_by_what_cannot_be_enforced(part, left_out, _relaxed):
    refused = [
        {"tools": [tool_with(part)], "tool_choice": REQUIRED},
        {"tools": [tool_with(part)], "tool_choice": NAMED},
        {"tools": [tool_with(part)], "tool_choice": allowed("required", "f")},
        {"tools": [tool_with(part, strict=True)]},
    ]
    for fields in refused:
        _, response = await answer_with(**fields)
        assert response.status_code == 400
        param = response.json()["error"]["param"]
        # Alternatives that overlap are found by the grammar library, which knows no paths.
        assert param == "tools" if left_out == ["oneOf"] else param.startswith("tools[0].function.parameters.")


@pytest.mark.parametrize(("part", "meant"), EXACT.values(), ids=EXACT)
@pytest.mark.parametrize("choice", ["auto", REQUIRED])
async def test_shapes_that_mean_the_same_as_others_are_enforced(part, meant, choice):
    service, response = await answer_with([tool_with(part)], tool_choice=choice)
    assert response.status_code == 200, response.text
    assert HEADER not in response.headers
    jsonschema.validate(arguments_of(service, random.Random(1)), {"properties": {"v": meant}})


@pytest.mark.parametrize(
    "parameters", [{}, {"properties": {}}, {"type": None}, {"type": ["object", "null"]}, {"nullable": True}], ids=str
)
@pytest.mark.parametrize("choice", ["auto", REQUIRED])
async def test_parameters_are_an_object_even_if_they_do_not_say_so(parameters, choice):
    service, response = await answer_with([call_of(parameters=parameters)], tool_choice=choice)
    assert response.status_code == 200, response.text
    assert HEADER not in response.headers
    assert isinstance(arguments_of(service, random.Random(2)), dict)


async def test_a_strict_function_with_empty_parameters_has_none():
    service, response = await answer_with([call_of(parameters={}, strict=True)])
    assert response.status_code == 200, response.text
    assert arguments_of(service, random.Random(2)) == {}


@pytest.mark.parametrize("name", ["mcp.files.read", "server/tool", "mcp:server:tool", "a" * 128])
async def test_the_names_of_mcps_tools_are_called(name):
    text = f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>'
    choice = await choice_of(service_of(text), tools=[call_of(name=name)])
    [call] = choice["message"]["tool_calls"]
    assert call["function"] == {"name": name, "arguments": "{}"}


UNREADABLE = {
    "infinite": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "too large": {"type": "object", "description": "x" * 200_000},
    "unsatisfiable": {"type": "object", "properties": {"a": False}, "required": ["a"]},
    "too complex": {
        "allOf": [
            {"anyOf": [{"properties": {f"p{i}": {"const": j}}, "required": [f"p{i}"]} for j in range(12)]}
            for i in range(12)
        ]
    },
}


@pytest.mark.parametrize("parameters", UNREADABLE.values(), ids=UNREADABLE)
async def test_a_schema_that_no_grammar_can_hold_is_that_of_any_object(parameters):
    service, response = await answer_with([call_of(parameters=parameters)])
    assert response.status_code == 200, response.text
    assert response.headers[HEADER] == PARAMETERS
    assert isinstance(arguments_of(service, random.Random(3)), dict)
    _, refused = await answer_with([call_of(parameters=parameters)], tool_choice=REQUIRED)
    assert refused.status_code == 400


async def test_of_schemas_that_are_too_large_together_the_largest_are_left_out():
    large = [call_of(name=f"f{i}", parameters={"type": "object", "description": "x" * 100_000}) for i in range(4)]
    service, response = await answer_with([*large, tool_with({"const": 7}, name="small")])
    assert response.status_code == 200, response.text
    assert response.headers[HEADER] == PARAMETERS
    assert arguments_of(service, random.Random(1), "small") == {"v": 7}
    _, refused = await answer_with(large, tool_choice=REQUIRED)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools")
    assert "larger than" in refused.json()["error"]["message"]


async def test_a_strict_tool_keeps_its_schema_beside_one_that_no_grammar_can_hold():
    tools = [call_of(name="g", parameters=UNREADABLE["unsatisfiable"]), tool_with({"const": 7}, strict=True)]
    service, response = await answer_with(tools)
    assert response.headers[HEADER] == PARAMETERS
    assert arguments_of(service, random.Random(1)) == {"v": 7}


async def test_a_format_of_elements_names_what_it_cannot_hold_to():
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "anyOf": [{"required": ["city"]}]}
    text = "<tool_call>\n<function=f>\n<parameter=city>\nUlm\n</parameter>\n</function>\n</tool_call>"
    service = service_of(text, template="qwen3_coder")
    response = await service.chat(tools=[call_of(parameters=parameters)])
    assert response.headers[HEADER] == f"{PARAMETERS}.anyOf"
    [call] = response.json()["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "Ulm"}


async def test_elements_are_read_alike_where_a_schema_is_left_out():
    parameters = {"type": "object", "properties": {"text": {"type": "string"}, "n": False}, "required": ["text", "n"]}
    text = "<tool_call>\n<function=f>\n<parameter=text>\n5\n</parameter>\n<parameter=n>\n5\n</parameter>\n</function>"
    service = service_of(text, template="qwen3_coder")
    response = await service.chat(tools=[call_of(parameters=parameters)])
    assert response.headers[HEADER] == PARAMETERS
    [call] = response.json()["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"text": "5", "n": 5}


async def test_streams_and_responses_name_it_too_and_each_in_its_own_words():
    service, response = await answer_with([tool_with(LOOKAHEAD)], stream=True)
    assert response.headers[HEADER] == f"{PARAMETERS}.properties.v.pattern"
    function = tool_with(LOOKAHEAD)["function"]
    body = {"model": MODEL, "input": "hi", "tools": [{"type": "function", **function}]}
    response = await service.post("/v1/responses", body)
    assert response.status_code == 200, response.text
    assert response.headers[HEADER] == "tools[].parameters.properties.v.pattern"


async def test_a_model_without_an_opening_of_calls_has_any_schema_too():
    service = service_of("{}", chat_template=ChatTemplate("{{ tools }}", {}))
    response = await service.chat(tools=[tool_with(LOOKAHEAD)])
    assert response.headers[HEADER] == f"{PARAMETERS}.properties.v.pattern"
    assert TOKENIZER.decode(service.engine.last.request.prompt_ids).count("(?!x)") == 1


async def test_the_metric_counts_the_field_and_no_names_that_clients_choose():
    service, response = await answer_with([tool_with(LOOKAHEAD | {"mood": 1})])
    assert response.headers[HEADER] == f"{PARAMETERS}.properties.v.pattern, {PARAMETERS}.properties.v.mood"
    samples = [s for metric in service.metrics.registry.collect() for s in metric.samples]
    counted = {s.labels["field"]: s.value for s in samples if s.name == "levserve_ignored_fields_total"}
    assert counted == {PARAMETERS: 1}


async def test_the_names_of_a_deep_schema_are_cut():
    part = {"not": {}}
    for _ in range(40):
        part = {"properties": {"x" * 60: part}}
    _, response = await answer_with([tool_with({"anyOf": [part] * 20})])
    assert response.status_code == 200, response.text
    assert len(response.headers[HEADER]) <= MAX_NAME_CHARS


async def test_with_strict_fields_what_calls_may_break_is_refused():
    model = {"chat_template": ChatTemplate(TEMPLATES["hermes"], {}), "max_model_len": 2048}
    service = Service(model=model, strict_fields=True)
    response = await service.chat(tools=[tool_with(LOOKAHEAD)])
    param = "tools[0].function.parameters.properties.v.pattern"
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert service.engine.streams == []
