"""No field of OpenAI's is silently ignored: it is obeyed, or refused by name."""

import json
import typing

import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsStreaming as TextParams

from service.api.schema.chat import ChatCompletionRequest
from service.api.schema.completions import CompletionRequest
from service.api.schema.wire import parse
from service.errors import UnknownParameter, UnsupportedParameter

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}
KINDS = {ChatCompletionRequest: CHAT, CompletionRequest: TEXT}
FIELDS = [(kind, field) for kind in KINDS for field in sorted(kind.neutral_values)]


def check(kind, **fields):
    return parse(kind, json.dumps(KINDS[kind] | fields).encode())


@pytest.mark.parametrize(("kind", "params"), [(ChatCompletionRequest, ChatParams), (CompletionRequest, TextParams)])
def test_every_field_of_the_official_client_is_known(kind, params):
    known = set(kind.model_fields) | set(kind.neutral_values)
    assert set(typing.get_type_hints(params)) <= known


@pytest.mark.parametrize("kind", KINDS)
def test_no_field_is_both_served_and_refused(kind):
    assert not set(kind.model_fields) & set(kind.neutral_values)


@pytest.mark.parametrize(("kind", "field"), FIELDS)
def test_a_field_that_is_not_served_is_refused_by_name_unless_it_asks_for_nothing(kind, field):
    for neutral in (None, *kind.neutral_values[field]):
        check(kind, **{field: neutral})
    for value in ("something", 10**9, [1], {"a": 1}):
        with pytest.raises(UnsupportedParameter) as caught:
            check(kind, **{field: value})
        assert (caught.value.param, caught.value.code) == (field, "unsupported_parameter")


@pytest.mark.parametrize(
    ("field", "value"),
    [("length_penalty", 1.1), ("use_beam_search", 0), ("tools", [{}])],
)
def test_nearly_neutral_is_not_neutral(field, value):
    with pytest.raises(UnsupportedParameter):
        check(ChatCompletionRequest, **{field: value})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("field", ["foo", "Model", "temperature ", "", "a" * 10_000, "__class__", "model_config"])
def test_a_field_that_nobody_knows_is_refused_by_name(kind, field):
    with pytest.raises(UnknownParameter) as caught:
        check(kind, **{field: None})
    assert caught.value.param == field[:64]


def test_what_the_official_client_sends_back_of_an_answer_is_taken():
    turn = {"role": "assistant", "content": "hi", "refusal": None, "annotations": [], "audio": None, "tool_calls": None}
    body = check(ChatCompletionRequest, messages=[turn, {"role": "user", "content": "more"}])
    assert len(body.messages) == 2
