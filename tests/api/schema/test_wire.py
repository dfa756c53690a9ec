"""No field is silently ignored: it is obeyed, refused by name, or accepted and named."""

import itertools
import json
import typing

import pytest
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsStreaming as TextParams

from service.api.schema.chat import ChatCompletionRequest
from service.api.schema.completions import CompletionRequest
from service.api.schema.wire import MAX_IGNORED, parse
from service.errors import (
    InvalidParameter,
    MissingParameter,
    RequestError,
    UnsupportedParameter,
)

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}
KINDS = {ChatCompletionRequest: CHAT, CompletionRequest: TEXT}


def check(kind, **fields):
    return parse(kind, json.dumps(KINDS[kind] | fields).encode())


def ignored(body):
    return [field.path for field in body.ignored]


@pytest.mark.parametrize(("kind", "params"), [(ChatCompletionRequest, ChatParams), (CompletionRequest, TextParams)])
def test_every_field_of_the_official_client_is_known(kind, params):
    known = kind.model_fields.keys() | kind.refused.keys() | kind.hints.keys()
    assert set(typing.get_type_hints(params)) <= known


@pytest.mark.parametrize("kind", KINDS)
def test_every_field_has_one_place_in_the_rule(kind):
    places = [kind.model_fields.keys(), kind.refused.keys(), kind.hints.keys()]
    assert not any(one & other for one, other in itertools.combinations(places, 2))


def test_nearly_neutral_is_not_neutral():
    with pytest.raises(UnsupportedParameter):
        check(ChatCompletionRequest, use_beam_search=0)
    assert ignored(check(ChatCompletionRequest, length_penalty=1.1)) == ["length_penalty"]
    assert ignored(check(ChatCompletionRequest, separate_reasoning=1)) == ["separate_reasoning"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("field", ["foo", "Model", "temperature ", "", "a" * 10_000, "__class__", "model_config"])
def test_a_field_that_nobody_knows_is_accepted_and_named(kind, field):
    body = check(kind, **{field: 1})
    assert [(one.path, one.is_known) for one in body.ignored] == [(field[:64], False)]
    assert body.model_dump() == check(kind).model_dump()
    assert not check(kind, **{field: None}).ignored


def test_what_the_official_client_sends_back_of_an_answer_is_taken():
    turn = {"role": "assistant", "content": "hi", "refusal": None, "annotations": [], "audio": None, "tool_calls": None}
    body = check(ChatCompletionRequest, messages=[turn, {"role": "user", "content": "more"}])
    assert len(body.messages) == 2


@pytest.mark.parametrize("parsed", [None, {"city": "Paris"}])
def test_what_the_official_client_has_read_from_an_answer_may_come_back_beside_its_text(parsed):
    """`parse` and `stream` of the SDKs add it to the message, which programs append to the conversation."""
    function = {"name": "f", "arguments": '{"city": "Paris"}', "parsed_arguments": parsed}
    calls = [{"id": "a", "type": "function", "function": function}]
    turn = {"role": "assistant", "content": '{"city": "Paris"}', "parsed": parsed, "tool_calls": calls}
    [message] = check(ChatCompletionRequest, messages=[turn]).messages
    assert message.tool_calls[0].function.arguments == '{"city": "Paris"}'


def test_a_message_may_be_marked_as_text_like_its_parts():
    """lm-eval marks its messages so."""
    body = check(ChatCompletionRequest, messages=[{"role": "user", "content": "hi", "type": "text"}])
    assert (len(body.messages), body.ignored) == (1, ())


def test_a_length_penalty_of_one_is_neutral_as_either_kind_of_number():
    check(CompletionRequest, length_penalty=1)
    check(CompletionRequest, length_penalty=1.0)


def test_obfuscation_of_a_stream_is_a_hint():
    body = check(CompletionRequest, stream=True, stream_options={"include_obfuscation": False, "include_usage": True})
    assert body.includes_usage
    body = check(CompletionRequest, stream=True, stream_options={"include_obfuscation": True})
    assert ignored(body) == ["stream_options.include_obfuscation"]


def test_the_usage_of_every_chunk_may_come_without_that_of_the_last():
    options = {"include_usage": True, "continuous_usage_stats": True}
    assert check(CompletionRequest, stream=True, stream_options=options).includes_usage_so_far
    body = check(CompletionRequest, stream=True, stream_options={"continuous_usage_stats": True})
    assert (body.includes_usage_so_far, body.includes_usage) == (True, False)


@pytest.mark.parametrize("field", ["annotations", "audio", "reasoning_details", "provider_specific_fields"])
def test_a_replayed_field_that_holds_something_is_named_once_for_all_messages(field):
    turn = {"role": "assistant", "content": "hi", field: ["x"]}
    body = check(ChatCompletionRequest, messages=[CHAT["messages"][0], turn, turn])
    assert [(one.path, one.name) for one in body.ignored] == [(f"messages[1].{field}", f"messages[].{field}")]


def test_a_refusal_that_is_sent_back_is_the_messages_text():
    for turn in (
        {"role": "assistant", "content": None, "refusal": "no"},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    ):
        [message] = check(ChatCompletionRequest, messages=[turn]).messages
        assert [part.text for part in message.content] == ["no"]


def test_calls_of_openais_older_interface_are_calls_of_tools():
    messages = [
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "function", "name": "f", "content": "4"},
    ]
    body = check(ChatCompletionRequest, messages=messages, functions=[{"name": "f"}], function_call={"name": "f"})
    [call] = body.messages[0].tool_calls
    assert (call.function.name, body.messages[1].role, body.messages[1].tool_call_id) == ("f", "tool", call.id)
    assert (body.tools[0].function.name, body.tool_choice.as_choice().names) == (
        "f",
        {"f": "tool_choice.function.name"},
    )
    assert not body.parallel_tool_calls
    assert body.ignored == ()


@pytest.mark.parametrize("arguments", ["{}", "", None, {}])
def test_arguments_of_a_call_may_come_back_parsed_or_empty(arguments):
    call = {"id": "a", "index": 0, "function": {"name": "f", "arguments": arguments}}
    body = check(ChatCompletionRequest, messages=[{"role": "assistant", "tool_calls": [call]}])
    assert body.messages[0].tool_calls[0].function.arguments == "{}"
    assert body.ignored == ()


@pytest.mark.parametrize("content", [None, [], ""])
def test_the_result_of_a_tool_may_be_empty(content):
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    result = {"role": "tool", "tool_call_id": "a", "content": content}
    body = check(ChatCompletionRequest, messages=[{"role": "assistant", "tool_calls": [call]}, result])
    assert "".join(part.text for part in body.messages[1].content) == ""


def test_very_many_unknown_fields_are_recorded_up_to_a_limit():
    body = check(CompletionRequest, **{f"field_{i}": i for i in range(3000)})
    assert len(body.ignored) == MAX_IGNORED


@pytest.mark.parametrize(
    ("content", "kind", "param"),
    [
        (b"{", RequestError, None),
        (b"", RequestError, None),
        (b"[]", RequestError, None),
        (b'"text"', RequestError, None),
        (b"\xff", RequestError, None),
        (b'{"prompt": "hi"}', MissingParameter, "model"),
        (b'{"model": "m"}', MissingParameter, "prompt"),
        (b'{"model": "m", "prompt": null}', MissingParameter, "prompt"),
        (b'{"model": 7, "prompt": "hi"}', InvalidParameter, "model"),
        (b'{"model": "m", "prompt": "hi", "temperature": NaN}', InvalidParameter, "temperature"),
        (b'{"model": "m", "prompt": "hi", "temperature": -Infinity}', InvalidParameter, "temperature"),
        (b'{"model": "m", "prompt": "hi", "temperature": 1e999}', InvalidParameter, "temperature"),
        (b'{"model": "m", "prompt": "hi", "logit_bias": {"5": NaN}}', InvalidParameter, "logit_bias.5"),
        (rb'{"model": "m", "prompt": ["hi", "\ud800", "\udfff"]}', InvalidParameter, "prompt[1]"),
        (rb'{"model": "m", "prompt": "hi", "metadata": {"\ud800": "a"}}', InvalidParameter, "metadata"),
        (rb'{"model": "m", "prompt": "hi", "\ud800": NaN}', RequestError, None),
        (rb'{"model": "m", "model": "m", "prompt": "\ud83c\udf0d"}', RequestError, None),
        (b'{"prompt": "' + b"a" * 9 + b'", "' + b"b" * 99 + b'": NaN}', InvalidParameter, "b" * 64),
        (b'{"prompt": ' + b"[" * 100_000 + b"NaN" + b"]" * 100_000 + b"}", RequestError, None),
    ],
)
def test_what_is_no_such_object_is_refused_with_the_kind_of_fault(content, kind, param):
    with pytest.raises(RequestError) as caught:
        parse(CompletionRequest, content)
    assert (type(caught.value), caught.value.param, caught.value.status) == (kind, param, 400)


def test_a_refusal_never_quotes_the_prompt():
    with pytest.raises(RequestError) as caught:
        check(ChatCompletionRequest, messages=[{"role": "user", "content": ["a secret"]}])
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


def test_deep_nesting_is_refused_as_no_json():
    with pytest.raises(RequestError) as caught:
        parse(CompletionRequest, b'{"model": "m", "prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}")
    assert type(caught.value) is RequestError


def test_unknown_fields_of_nested_objects_are_named_by_their_path():
    long = "b" * 100
    for messages, param in (
        ([{"role": "user", "content": "hi", long: 1}], f"messages[0].{long[:64]}"),
        ([{"role": "user", "content": [{"type": "text", "text": "hi", "mood": 1}]}], "messages[0].content[0].mood"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "hi", long: 1}]}],
            f"messages[0].content[0].{long[:64]}",
        ),
    ):
        assert [one.path for one in check(ChatCompletionRequest, messages=messages).ignored] == [param]


def test_null_is_the_same_as_nothing_everywhere():
    message = {"role": "user", "content": "hi", "name": None}
    body = check(ChatCompletionRequest, messages=[message], temperature=None, n=None, stream_options=None, tools=None)
    assert (body.n, body.temperature, body.stream_options) == (1, None, None)


def test_a_message_is_read_with_its_tool_calls():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "content": "4", "tool_call_id": "1"},
        {"role": "user", "content": "hi", "name": "ann"},
    ]
    got = check(ChatCompletionRequest, messages=messages).messages
    assert [message.role for message in got] == ["system", "developer", "assistant", "tool", "user"]
    assert [[part.text for part in message.content or ()] for message in got] == [
        ["Be brief."],
        ["Be kind."],
        [],
        ["4"],
        ["hi"],
    ]
    assert got[2].tool_calls[0].model_dump(exclude_unset=True) == call
    assert (got[3].tool_call_id, got[4].name) == ("1", "ann")
    assert (got[0].name, got[0].tool_calls, got[0].tool_call_id, got[2].content) == (None, None, None, None)


def test_options_of_streams_and_prompts_must_fit_the_answer():
    assert check(CompletionRequest, stream=True, stream_options={"include_usage": True}).includes_usage
    assert not check(CompletionRequest, stream=True, stream_options={}).includes_usage
    assert check(CompletionRequest, prompt_logprobs=1).prompt_logprobs == 1
    for kind in KINDS:
        assert check(kind, stream_options={"include_usage": True}).ignored == ()
        with pytest.raises(InvalidParameter) as caught:
            check(kind, stream=True, prompt_logprobs=0)
        assert caught.value.param == "prompt_logprobs"
    for fields, param in (
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
    ):
        with pytest.raises(InvalidParameter) as caught:
            check(ChatCompletionRequest, **fields)
        assert caught.value.param == param


def test_token_ids_are_checked_against_the_vocabulary():
    check(CompletionRequest, stop_token_ids=[9], allowed_token_ids=[9], logit_bias={"9": 1}).options().check_token_ids(
        10
    )
    check(CompletionRequest).options().check_token_ids(10)
    for fields, param in (
        ({"stop_token_ids": [9, 10]}, "stop_token_ids[1]"),
        ({"allowed_token_ids": [10]}, "allowed_token_ids[0]"),
        ({"logit_bias": {"10": 1}}, "logit_bias"),
    ):
        with pytest.raises(
            InvalidParameter, match="10 is not a token id of this model, whose ids are less than 10"
        ) as caught:
            check(CompletionRequest, **fields).options().check_token_ids(10)
        assert caught.value.param == param


def test_an_object_of_another_kind_is_refused_by_its_type_before_its_fields():
    with pytest.raises(UnsupportedParameter) as caught:
        check(ChatCompletionRequest, tools=[{"type": "custom", "custom": {"name": "a"}}])
    assert caught.value.param == "tools[0].type"
    assert "it is 'custom'. Supported: 'function'." in caught.value.message
