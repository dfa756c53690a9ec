import pytest

from service.api.generation.chat_prompt import template_messages
from service.api.schema.chat import Message, turns_of
from service.errors import InvalidParameter, MissingParameter

CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}


def turns(*messages):
    return template_messages(turns_of([Message.model_validate(message) for message in messages]))


def test_parts_are_joined_and_a_developer_is_the_system():
    parts = [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]
    assert turns({"role": "developer", "content": parts}, {"role": "user", "content": "hi", "name": "Ada"}) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi", "name": "Ada"},
    ]


def test_an_earlier_tool_call_reaches_the_template_with_its_arguments_as_an_object():
    assert turns(
        {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "content": "17", "tool_call_id": "c1"}
    ) == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Ulm"}}}
            ],
        },
        {"role": "tool", "content": "17", "tool_call_id": "c1", "name": "weather"},
    ]


@pytest.mark.parametrize("arguments", ["{", "[]", "NaN", "null", '"{}"', "[" * 5000, '{"city": "U'])
def test_arguments_that_are_no_object_stay_what_they_are(arguments):
    call = CALL | {"function": {"name": "weather", "arguments": arguments}}
    made = turns({"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": [call]})[1]
    assert made["tool_calls"][0]["function"] == {"name": "weather", "arguments": arguments}


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": "hi", "tool_calls": [CALL]}, "messages[0].tool_calls"),
        ({"role": "user", "content": "hi", "tool_call_id": "c1"}, "messages[0].tool_call_id"),
    ],
)
def test_a_field_of_another_role_is_refused(message, param):
    with pytest.raises(InvalidParameter) as caught:
        turns(message)
    assert caught.value.param == param


@pytest.mark.parametrize("role", ["user", "system", "developer"])
def test_a_message_without_content_is_refused(role):
    with pytest.raises(MissingParameter, match=r"messages\[0\]\.content"):
        turns({"role": role})


@pytest.mark.parametrize("fields", [{}, {"tool_calls": []}, {"content": None, "reasoning": "hm"}])
def test_the_assistant_may_have_said_nothing(fields):
    assert turns({"role": "assistant"} | fields)[0]["content"] == ""
