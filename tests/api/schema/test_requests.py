"""Every number that a client may send is in its range, or is refused by name."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api.schema.chat import ChatCompletionRequest
from service.api.schema.completions import CompletionRequest
from service.api.schema.wire import parse
from service.errors import RequestError, UnsupportedParameter

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT = {"model": "m", "prompt": "hi"}

anything = st.one_of(
    st.integers(),
    st.floats(),
    st.booleans(),
    st.text(max_size=5),
    st.sampled_from(
        [-1, 0, 1, 2, 2**31, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**9, 1.0, "1", "NaN", [], {}, [1]]
    ),
)
RANGES = {
    "temperature": lambda v: type(v) in (int, float) and 0 <= v <= 2,
    "top_p": lambda v: type(v) in (int, float) and 0 <= v <= 1,
    "seed": lambda v: type(v) is int and -(2**63) <= v < 2**63,
    "max_tokens": lambda v: type(v) is int and (v == -1 or 1 <= v < 2**63),
    "max_completion_tokens": lambda v: type(v) is int and (v == -1 or 1 <= v < 2**63),
    "stream": lambda v: type(v) is bool,
    "top_k": lambda v: type(v) is int and -1 <= v < 2**31,
    "min_p": lambda v: type(v) in (int, float) and 0 <= v <= 1,
    "repetition_penalty": lambda v: type(v) in (int, float) and 0.01 <= v <= 10,
    "presence_penalty": lambda v: type(v) in (int, float) and -2 <= v <= 2,
    "frequency_penalty": lambda v: type(v) in (int, float) and -2 <= v <= 2,
    "min_tokens": lambda v: type(v) is int and 0 <= v < 2**31,
    "n": lambda v: type(v) is int and 1 <= v <= 8,
    "logprobs": lambda v: type(v) is bool,
    "ignore_eos": lambda v: type(v) is bool,
    "return_token_ids": lambda v: type(v) is bool,
}


# Values that stand for others: the likeliest token alone, and the rest of the context.
MEANINGS = {("top_p", 0): 1e-6, ("max_tokens", -1): None, ("max_completion_tokens", -1): None}


def refusal(kind, document):
    with pytest.raises(RequestError) as caught:
        parse(kind, json.dumps(document).encode())
    return caught.value


@pytest.mark.parametrize("field", RANGES)
@given(value=anything)
def test_a_number_is_taken_in_its_range_only(field, value):
    body = json.dumps({**CHAT, field: value}).encode()
    if RANGES[field](value):
        got = getattr(parse(ChatCompletionRequest, body), field)
        assert got == MEANINGS.get((field, value), value)
    else:
        with pytest.raises(RequestError) as caught:
            parse(ChatCompletionRequest, body)
        assert caught.value.status == 400
        assert caught.value.param == field


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" * 10_000, "0x1", "01", "+1"])
def test_what_is_no_finite_number_is_refused(number):
    body = f'{{"model": "m", "prompt": "a", "temperature": {number}}}'.encode()
    with pytest.raises(RequestError):
        parse(CompletionRequest, body)


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([], []),
        (None, []),
        (list("abcd"), list("abcd")),
        ("", []),
        (["a", ""], ["a"]),
    ],
)
def test_stop_is_one_string_or_up_to_four(stop, expected):
    assert parse(CompletionRequest, json.dumps(TEXT | {"stop": stop}).encode()).stop == expected


@pytest.mark.parametrize(
    ("stop", "param"),
    [
        (list("abcdefghijklmnopq"), "stop"),
        (["a", 1], "stop[1]"),
        (7, "stop"),
        ({}, "stop"),
    ],
)
def test_any_other_stop_is_refused(stop, param):
    assert refusal(CompletionRequest, TEXT | {"stop": stop}).param == param


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"include_usage": 1}, "stream_options.include_usage"),
        ([], "stream_options"),
    ],
)
def test_a_broken_stream_option_is_named_by_its_path(options, param):
    assert refusal(CompletionRequest, TEXT | {"stream": True, "stream_options": options}).param == param


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("hi", "messages"),
        ({}, "messages"),
        ([1], "messages[0]"),
        ([{"content": "hi"}], "messages[0].role"),
        ([{"role": "<root>", "content": "hi"}], "messages[0].role"),
        ([{"role": "user", "content": 7}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": ["hi"]}], "messages[0].content[0]"),
        ([{"role": "assistant", "tool_calls": [{"id": "a"}]}], "messages[0].tool_calls[0].function"),
        ([{"role": "user", "content": "a"}, {"role": "user", "content": "b", "name": 7}], "messages[1].name"),
    ],
)
def test_a_broken_message_is_named_by_its_path(messages, param):
    assert refusal(ChatCompletionRequest, CHAT | {"messages": messages}).param == param


@pytest.mark.parametrize(
    "part",
    [
        {"type": "input_audio", "input_audio": {}},
        {"type": "file", "file": {}},
        {"type": "video_url", "video_url": {"url": "file:///etc/passwd"}},
    ],
)
def test_only_text_and_images_are_read(part):
    content = [{"type": "text", "text": "look"}, part]
    error = refusal(ChatCompletionRequest, CHAT | {"messages": [{"role": "user", "content": content}]})
    assert isinstance(error, UnsupportedParameter)
    assert error.param == "messages[0].content[1].type"
