"""What the bodies besides chats and completions take, and how many objects any body may have."""

import json

import pytest

from service.api.schema.chat import ChatCompletionRequest
from service.api.schema.pooling import EmbeddingRequest, PoolingRequest
from service.api.schema.rerank import RerankRequest, ScoreRequest
from service.api.schema.responses import ResponsesRequest
from service.api.schema.tokenize import TokenizeRequest
from service.api.schema.wire import MAX_OBJECTS, parse
from service.errors import InvalidParameter, MissingParameter

BODIES = {
    ChatCompletionRequest: {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    EmbeddingRequest: {},
    PoolingRequest: {"model": "m", "input": "hi"},
    RerankRequest: {"model": "m", "query": "cat", "documents": ["a"]},
    ResponsesRequest: {"model": "m", "input": "hi"},
    ScoreRequest: {"model": "m", "text_1": "cat", "text_2": ["a", "b"]},
    TokenizeRequest: {},
}


def nothing_sealed(text, proof):
    return None


def check(kind, **fields):
    return parse(kind, json.dumps(BODIES[kind] | fields).encode())


def refused_param(kind, **fields):
    with pytest.raises((InvalidParameter, MissingParameter)) as caught:
        check(kind, **fields)
    return caught.value.param


def test_a_body_has_a_bounded_number_of_objects_itself_included():
    message = {"role": "user", "content": "a"}
    assert len(check(ChatCompletionRequest, messages=[message] * (MAX_OBJECTS - 1)).messages) == MAX_OBJECTS - 1
    last = f"messages[{MAX_OBJECTS - 1}]"
    assert refused_param(ChatCompletionRequest, messages=[message] * MAX_OBJECTS) == last


def test_objects_where_none_belong_are_counted_before_they_are_looked_at():
    with pytest.raises(InvalidParameter, match=f"at most {MAX_OBJECTS} objects") as caught:
        check(ChatCompletionRequest, stop=[{}] * MAX_OBJECTS)
    assert caught.value.param == "stop"


def test_one_first_text_belongs_to_every_second_one():
    assert check(ScoreRequest).pairs == [("cat", "a"), ("cat", "b")]
    assert check(ScoreRequest, text_1=["c", "d"]).pairs == [("c", "a"), ("d", "b")]
    assert refused_param(ScoreRequest, text_1=["c", "d", "e"]) == "text_1"


@pytest.mark.parametrize("task", [None, "token_embed", "token_classify", "classify"])
def test_only_the_one_vector_of_a_text_is_cut(task):
    assert check(PoolingRequest, task="embed", dimensions=2).dimensions == 2
    assert refused_param(PoolingRequest, task=task, dimensions=2) == "dimensions"


def test_texts_to_embed_stand_under_one_of_two_names():
    for name in ("content", "input"):
        body = check(EmbeddingRequest, **{name: "hi"})
        assert (body.texts, body.param) == (("hi",), name)
    assert refused_param(EmbeddingRequest) == "content"
    assert refused_param(EmbeddingRequest, content="a", input="b") == "input"


def test_a_text_or_messages_are_tokenized_and_not_both():
    messages = [{"role": "user", "content": "hi"}]
    assert check(TokenizeRequest, prompt="").prompt == ""
    assert refused_param(TokenizeRequest) == "prompt"
    assert refused_param(TokenizeRequest, prompt="", messages=messages) == "messages"
    for name, value in (("add_generation_prompt", False), ("continue_final_message", True), ("tools", [_tool("f")])):
        assert refused_param(TokenizeRequest, prompt="a", **{name: value}) == name
    assert refused_param(TokenizeRequest, messages=messages, tools=[_tool("f")] * 2) == "tools[1].function.name"


def _tool(name):
    return {"type": "function", "function": {"name": name}}


def test_thinking_belongs_to_the_next_message_of_the_assistant_alone():
    items = [
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "2", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "4"},
        {"role": "assistant", "content": "It is 4."},
    ]
    called, output, answer = check(ResponsesRequest, input=items).conversation(nothing_sealed).turns
    assert called.thinking == "hm"
    assert [call.id for call in called.calls] == ["1", "2"]
    assert (output.call_id, answer.thinking, [part.text for part in answer.texts]) == ("1", None, ["It is 4."])


def test_a_choice_that_requires_a_call_needs_tools_and_others_do_not():
    for choice in ("none", "auto"):
        assert check(ChatCompletionRequest, tool_choice=choice).tool_choice.type == choice
    for choice in ("required", {"type": "function", "function": {"name": "f"}}):
        assert refused_param(ChatCompletionRequest, tool_choice=choice) == "tool_choice"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_a_schema_that_is_a_text_is_json_without_such_numbers(number):
    outputs = {"json": f'{{"enum": [{number}]}}'}
    body = check(ChatCompletionRequest, structured_outputs=outputs)
    with pytest.raises(InvalidParameter) as caught:
        body.structured_outputs.as_format().definition()
    assert caught.value.param == "structured_outputs.json"
