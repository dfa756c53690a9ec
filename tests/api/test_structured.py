"""Structured output over the API: the grammar reaches the engine, and what cannot be enforced is refused by name."""

import json
import random

import numpy as np
import pytest

from service.errors import ConstraintError
from tests.api.scripted_engine import END, TOKENIZER, Service, tokens

pytestmark = pytest.mark.anyio

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}


def json_schema(schema, **fields):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema} | fields}}


def text_of(constraint, rng):
    """Return a random text that a constraint lets end."""
    words, token_ids = np.zeros((TOKENIZER.vocab_size + 31) // 32, np.uint32), []
    while True:
        constraint.fill_mask(words)
        allowed = [int(i) for i in np.flatnonzero(np.unpackbits(words.view(np.uint8), bitorder="little"))]
        token_id = END if END in allowed else rng.choice(allowed)
        if token_id == END:
            return TOKENIZER.decode(token_ids)
        constraint.accept(token_id)
        token_ids.append(token_id)


@pytest.mark.parametrize(
    ("fields", "is_expected"),
    [
        (json_schema(SCHEMA), lambda text: json.loads(text).keys() == {"n"}),
        (json_schema(SCHEMA, strict=True, description="a number"), lambda text: json.loads(text).keys() == {"n"}),
        ({"response_format": {"type": "json_object"}}, lambda text: isinstance(json.loads(text), dict)),
        ({"structured_outputs": {"json": SCHEMA}}, lambda text: json.loads(text).keys() == {"n"}),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, lambda text: json.loads(text).keys() == {"n"}),
        ({"structured_outputs": {"json_object": True}}, lambda text: isinstance(json.loads(text), dict)),
        ({"structured_outputs": {"regex": "[ab]{3}"}}, lambda text: set(text) <= {"a", "b"} and len(text) == 3),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, lambda text: text in {"yes", "no"}),
        ({"structured_outputs": {"grammar": 'root ::= "x" "y"'}}, lambda text: text == "xy"),
    ],
)
@pytest.mark.parametrize("num_choices", [1, 3])
async def test_each_choice_of_an_answer_is_held_to_its_own_grammar(fields, is_expected, num_choices):
    service = Service()
    assert (await service.chat(n=num_choices, **fields)).status_code == 200
    constraints = [stream.request.constraint for stream in service.engine.streams]
    assert len(set(map(id, constraints))) == num_choices
    for seed, constraint in enumerate(constraints):
        assert is_expected(text_of(constraint, random.Random(seed)))


async def test_a_completion_takes_vllms_name():
    service = Service()
    assert (await service.complete(["a", "b"], structured_outputs={"choice": ["x"]})).status_code == 200
    assert [text_of(stream.request.constraint, random.Random(0)) for stream in service.engine.streams] == ["x", "x"]


async def test_a_text_is_not_held_to_anything():
    service = Service()
    await service.chat(response_format={"type": "text"})
    await service.chat()
    assert [stream.request.constraint for stream in service.engine.streams] == [None, None]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "grammar"}}, "response_format.type"),
        ({"response_format": {"type": "text", "json_schema": {"name": "a", "schema": {}}}},
         "response_format.json_schema"),
        (json_schema(SCHEMA, strict="yes"), "response_format.json_schema.strict"),
        (json_schema("x"), "response_format.json_schema.schema"),
        (json_schema(None), "response_format.json_schema.schema"),
        (json_schema({"uniqueItems": True}), "response_format.json_schema.schema.uniqueItems"),
        (json_schema({"$ref": "#"}), "response_format.json_schema.schema"),
        (json_schema({"type": "object"}, strict=True), "response_format.json_schema.schema.additionalProperties"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
        ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice[0]"),
        ({"structured_outputs": {"grammar": "nothing"}}, "structured_outputs.grammar"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
        ({"structured_outputs": {"json": "[1]"}}, "structured_outputs.json"),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs.json_object"),
        ({"structured_outputs": {"json": {}, "structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"structured_outputs": {"json": {}}, "response_format": {"type": "json_object"}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "min_tokens": 2}, "min_tokens"),
        ({"structured_outputs": {"regex": "a"}, "allowed_token_ids": [5]}, "allowed_token_ids"),
        ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos"),
    ],
)  # fmt: skip
async def test_what_cannot_be_enforced_is_refused_by_name(fields, param):
    service = Service()
    response = await service.chat(**fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)
    assert service.engine.streams == []


async def test_with_a_stop_token_of_its_own_an_answer_needs_no_end_of_text():
    service = Service()
    response = await service.chat(structured_outputs={"regex": "a"}, ignore_eos=True, stop_token_ids=[7])
    assert response.status_code == 200


async def test_a_grammar_that_cannot_be_followed_ends_its_request_with_the_reason():
    service = Service([*tokens("a"), ConstraintError("It cannot be followed.", param="structured_outputs.regex")])
    response = await service.chat(structured_outputs={"regex": "a"})
    assert response.status_code == 400
    assert response.json()["error"] == {
        "message": "It cannot be followed.",
        "type": "invalid_request_error",
        "param": "structured_outputs.regex",
        "code": "constraint_failed",
    }
