"""Promises under other servers' names: honoured where they mean one of ours, refused by name where not."""

import pytest

from service.api.schema.chat import ChatCompletionRequest
from service.api.schema.completions import CompletionRequest
from service.api.schema.messages import MessagesRequest
from service.api.schema.ollama import OllamaChatRequest, OllamaGenerateRequest
from service.api.schema.responses import ResponsesRequest
from service.api.schema.wire import checked
from service.errors import RequestError

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "format": "int32"}}}
MESSAGES = [{"role": "user", "content": "hi"}]
CHAT = (ChatCompletionRequest, {"model": "m", "messages": MESSAGES})
COMPLETION = (CompletionRequest, {"model": "m", "prompt": "hi"})
RESPONSE = (ResponsesRequest, {"model": "m", "input": "hi"})
MESSAGE = (MessagesRequest, {"model": "m", "messages": MESSAGES, "max_tokens": 9})
OLLAMA = (OllamaChatRequest, {"model": "m", "messages": MESSAGES})
GENERATE = (OllamaGenerateRequest, {"model": "m", "prompt": "hi"})

GRAMMARS = [
    ({"json_schema": SCHEMA}, {"json": SCHEMA}),
    ({"json_schema": {"name": "x", "schema": SCHEMA}}, {"json": SCHEMA}),
    ({"json_schema": '{"type": "object"}'}, {"json": '{"type": "object"}'}),
    ({"regex": "a+"}, {"regex": "a+"}),
    ({"ebnf": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
    ({"grammar": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
    ({"grammar": {"type": "json", "value": SCHEMA}}, {"json": SCHEMA}),
    ({"grammar": {"type": "regex", "value": "a+"}}, {"regex": "a+"}),
    ({"format": "json"}, {"json_object": True}),
    ({"format": SCHEMA}, {"json": SCHEMA}),
    ({"guided_json": SCHEMA}, {"json": SCHEMA}),
    ({"guided_json": '{"type": "object"}'}, {"json": '{"type": "object"}'}),
    ({"guided_regex": "a+"}, {"regex": "a+"}),
    ({"guided_choice": ["yes", "no"]}, {"choice": ["yes", "no"]}),
    ({"guided_grammar": 'root ::= "a"', "guided_json": None}, {"grammar": 'root ::= "a"'}),
    ({"structured_outputs": {"ebnf": 'root ::= "a"'}}, {"grammar": 'root ::= "a"'}),
    ({"structured_outputs": {"json_schema": SCHEMA}}, {"json": SCHEMA}),
]


def body(kind, **fields):
    return checked(kind[0], kind[1] | fields)


@pytest.mark.parametrize("kind", [CHAT, COMPLETION, RESPONSE], ids=lambda kind: kind[0].__name__)
@pytest.mark.parametrize(("fields", "expected"), GRAMMARS)
def test_a_grammar_of_another_name_is_one(kind, fields, expected):
    request = body(kind, **fields)
    assert request.structured_outputs.model_dump(by_alias=True, exclude_none=True) == expected
    assert request.structured_outputs.as_format().definition()
    assert request.ignored == ()


@pytest.mark.parametrize(
    "stated",
    [
        {"type": "json_object", "schema": SCHEMA},
        {"type": "json_schema", "schema": SCHEMA},
        {"type": "json", "value": SCHEMA},
        {"type": "json_object", "value": SCHEMA},
    ],
)
def test_a_schema_beside_the_type_is_one(stated):
    request = body(CHAT, response_format=stated)
    assert request.response_format.json_schema.schema_ == SCHEMA
    assert request.response_format.as_format().definition().part["json_schema"]["properties"] == {
        "a": {"type": "integer"}
    }


@pytest.mark.parametrize("name", ["max_new_tokens", "n_predict", "num_predict", "max_output_tokens", "max_tokens"])
def test_a_limit_of_another_name_is_one(name):
    assert body(CHAT, **{name: 7}).options().max_tokens == 7
    assert body(COMPLETION, **{name: 7}).options().max_tokens == 7
    assert body(RESPONSE, **{name: 7}).max_output_tokens == 7
    assert body((MESSAGE[0], {**MESSAGE[1], "max_tokens": None}), **{name: 7}).max_tokens == 7
    assert body(OLLAMA, options={name: 7}).options.num_predict == 7
    assert body(CHAT, options={"num_predict": 7, "num_ctx": 9}).max_tokens == 7


def test_other_promises_have_their_meaning():
    for kind in (CHAT, COMPLETION, RESPONSE):
        request = body(kind, min_new_tokens=3, repeat_penalty=1.5, stop_sequences=["x"])
        assert (request.min_tokens, request.repetition_penalty, request.stop) == (3, 1.5, ["x"])
        assert body(kind, n_predict=-1).ignored == ()
        options = {"stop": ["x"], "seed": 4, "temperature": 0.5, "num_predict": -2, "num_ctx": 9}
        request = body(kind, options=options)
        assert (request.stop, request.seed, request.temperature) == (["x"], 4, 0.5)
        assert [field.path for field in request.ignored] == ["options"]
    assert body(MESSAGE, stop="x").stop_sequences == ["x"]
    options = body(OLLAMA, options={"repetition_penalty": 1.5, "stop_sequences": "x"}).options
    assert (options.repeat_penalty, options.stop) == (1.5, ["x"])


@pytest.mark.parametrize(
    ("kind", "fields", "param"),
    [
        *((kind, {name: "x"}, name) for kind in (CHAT, COMPLETION, RESPONSE, MESSAGE, OLLAMA, GENERATE)
          for name in ("structural_tag", "stop_regex")),
        *((kind, {name: "x"}, name) for kind in (MESSAGE, OLLAMA, GENERATE)
          for name in ("grammar", "regex", "ebnf", "json_schema", "min_tokens", "guided_json", "response_format")),
        *((kind, {"max_tokens": 4}, "max_tokens") for kind in (OLLAMA, GENERATE)),
        *((OLLAMA, {"options": {name: "x"}}, f"options.{name}") for name in ("grammar", "regex", "stop_regex")),
        (RESPONSE, {"response_format": {"type": "json_object"}}, "response_format"),
        (CHAT, {"max_tokens": 5, "max_new_tokens": 6}, "max_new_tokens"),
        (CHAT, {"min_tokens": 5, "min_new_tokens": 6}, "min_new_tokens"),
        (MESSAGE, {"max_new_tokens": 6}, "max_new_tokens"),
        (CHAT, {"regex": "a", "ebnf": "b"}, "regex"),
        (CHAT, {"grammar": "a", "structured_outputs": {"regex": "b"}}, "grammar"),
        (CHAT, {"regex": "a", "response_format": {"type": "json_object"}}, "regex"),
        (CHAT, {"guided_regex": "a", "guided_choice": ["b"]}, "guided_regex"),
        (CHAT, {"regex": 7}, "regex"),
        (CHAT, {"grammar": {"type": "lark", "value": "a"}}, "grammar"),
        (CHAT, {"format": "xml"}, "format"),
        (CHAT, {"response_format": {"type": "text", "schema": SCHEMA}}, "response_format.json_schema"),
        (CHAT, {"response_format": {"type": "text", "grammar": "a"}}, "response_format.grammar"),
        (CHAT, {"response_format": {"type": "structural_tag"}}, "response_format.type"),
        (RESPONSE, {"text": {"format": {"type": "text", "regex": "a"}}}, "text.format.regex"),
        (CHAT, {"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        (CHAT, {"extra_body": {"guided_json": SCHEMA}}, "extra_body.guided_json"),
        (CHAT, {"sampling_params": {"max_new_tokens": 4}}, "sampling_params.max_new_tokens"),
    ],
)  # fmt: skip
def test_a_promise_that_is_not_kept_is_refused_by_name(kind, fields, param):
    with pytest.raises(RequestError) as caught:
        body(kind, **fields)
    assert caught.value.param == param


@pytest.mark.parametrize("name", ["int32", "int64", "uint32", "float", "double", "decimal", "password", "regex", "idn"])
def test_a_format_that_is_an_annotation_refuses_no_schema(name):
    schema = {"type": "object", "properties": {"a": {"type": "number", "format": name, "contentEncoding": "x"}}}
    assert (
        body(CHAT, response_format={"type": "json_schema", "json_schema": {"schema": schema}})
        .response_format.as_format()
        .definition()
    )
