"""Structured output of the demo model, which was never taught any, through the official client and a real port."""

import concurrent.futures
import contextlib
import json
from typing import Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel, ConfigDict

MODEL = "levserve-demo"
QUESTION = [{"role": "user", "content": "Where do you live?"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        "size": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["city", "size"],
    "additionalProperties": False,
}


class Place(BaseModel):
    model_config = ConfigDict(extra="forbid")

    kind: Literal["city", "village"]
    population: Literal[1, 100, 10_000]


def ask(service, **fields):
    return service.client().chat.completions.create(model=MODEL, messages=QUESTION, **({"max_tokens": 200} | fields))


def test_every_answer_that_ends_by_itself_satisfies_the_schema(demo_service):
    format_ = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}
    for seed in range(4):
        for choice in ask(demo_service, response_format=format_, seed=seed, temperature=1.5, n=4).choices:
            assert choice.finish_reason == "stop"
            jsonschema.validate(json.loads(choice.message.content), SCHEMA)


def test_the_clients_own_parsing_returns_an_object(demo_service):
    answer = demo_service.client().chat.completions.parse(model=MODEL, messages=QUESTION, response_format=Place)
    assert isinstance(answer.choices[0].message.parsed, Place)


def test_a_stream_says_what_a_whole_answer_says(demo_service):
    fields = {"response_format": {"type": "json_object"}, "seed": 7, "max_tokens": 60}
    whole = demo_service.client().chat.completions.create(model=MODEL, messages=QUESTION, **fields).choices[0]
    chunks = list(demo_service.client().chat.completions.create(model=MODEL, messages=QUESTION, stream=True, **fields))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole.message.content
    assert chunks[-1].choices[0].finish_reason == whole.finish_reason


@pytest.mark.parametrize(
    ("stated", "is_expected"),
    [
        ({"choice": ["red", "green"]}, lambda text: text in {"red", "green"}),
        ({"regex": "[0-9]{3}-[a-f]{2}"}, lambda text: text[3] == "-" and text[:3].isdecimal() and len(text) == 6),
        ({"grammar": 'start: "(" /[a-z]{2}/ ")"'}, lambda text: text[0] + text[3:] == "()"),
    ],
)
def test_a_completion_is_held_to_vllms_notations(demo_service, stated, is_expected):
    answer = demo_service.client().completions.create(
        model=MODEL, prompt="It is", n=2, max_tokens=40, extra_body={"structured_outputs": stated}
    )
    assert all(is_expected(choice.text) for choice in answer.choices)
    assert {choice.finish_reason for choice in answer.choices} == {"stop"}


def test_constrained_and_free_requests_share_their_batches(demo_service, demo_answers):
    format_ = {"type": "json_schema", "json_schema": {"name": "place", "schema": SCHEMA}}

    def free(pair):
        messages = [{"role": "user", "content": pair["question"]}]
        answer = demo_service.client().chat.completions.create(model=MODEL, messages=messages, temperature=0)
        return answer.choices[0].message.content == pair["answer"]

    def held(_pair):
        choice = ask(demo_service, response_format=format_).choices[0]
        return not list(jsonschema.Draft202012Validator(SCHEMA).iter_errors(json.loads(choice.message.content)))

    with concurrent.futures.ThreadPoolExecutor(2 * len(demo_answers)) as pool:
        outcomes = [pool.submit(work, pair) for pair in demo_answers for work in (free, held)]
        assert all(outcome.result() for outcome in outcomes)


def test_the_length_ends_an_answer_visibly(demo_service):
    answer = ask(demo_service, response_format={"type": "json_object"}, max_tokens=3, seed=1)
    assert answer.choices[0].finish_reason == "length"


def test_a_schema_that_cannot_be_enforced_is_the_clients_error(demo_service):
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    with pytest.raises(openai.BadRequestError) as caught:
        ask(demo_service, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    assert caught.value.param == "response_format.json_schema.schema.properties.a.uniqueItems"


HOSTILE = [
    {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    {"allOf": [{"anyOf": [{"minimum": i}, {"maximum": -i}]} for i in range(20)]},
    {"$ref": "#/properties/" * 50},
    {"type": "string", "pattern": "(" * 500 + "a" + ")" * 500},
    {"type": "string", "pattern": "^(?:a?){3000}a{3000}$", "minLength": 2},
    {"type": "string", "pattern": "a{9999}{9999}{9999}"},
    {"properties": {f"p{i}": {"properties": {f"q{j}": {} for j in range(60)}} for i in range(60)}},
    json.loads('{"items":' * 150 + "{}" + "}" * 150),
    {"type": "object", "patternProperties": {"^a": {}, "b$": {}}},
]


def test_hostile_schemas_are_refused_or_followed_while_others_are_answered(demo_service, demo_answers):
    for schema in HOSTILE:
        format_ = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        with contextlib.suppress(openai.BadRequestError):
            ask(demo_service, response_format=format_, max_tokens=8)
        messages = [{"role": "user", "content": demo_answers[0]["question"]}]
        answer = demo_service.client().chat.completions.create(model=MODEL, messages=messages, temperature=0)
        assert answer.choices[0].message.content == demo_answers[0]["answer"]
