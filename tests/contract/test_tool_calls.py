"""Tool calls of the demo model, with tools that its lessons lack, through the official client and a real port."""

import json

import jsonschema
import pytest

MODEL = "levserve-demo"
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "unit": {"enum": ["C", "F"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Now.", "parameters": CITY}}
CLOCK = {"type": "function", "function": {"name": "clock"}}
QUESTION = [{"role": "user", "content": "What is the weather?"}]


def ask(service, messages=QUESTION, **fields):
    fields = {"tools": [WEATHER, CLOCK], "max_tokens": 200} | fields
    return service.client().chat.completions.create(model=MODEL, messages=messages, **fields)


def test_a_loop_of_two_turns_calls_and_then_uses_the_result(demo_service):
    first = ask(demo_service, tool_choice="required", parallel_tool_calls=False, seed=1).choices[0]
    assert (first.finish_reason, first.message.content) == ("tool_calls", None)
    [call] = first.message.tool_calls
    assert call.id.startswith("call_")
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"degrees": 7}'}
    second = ask(demo_service, [*QUESTION, first.message, result], tool_choice="none", temperature=0).choices[0]
    assert second.message.tool_calls is None
    assert isinstance(second.message.content, str)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_every_call_satisfies_the_schema_of_its_tool(demo_service, choice):
    ended = 0
    for one in ask(demo_service, tool_choice=choice, parallel_tool_calls=False, n=6, temperature=1.5, seed=5).choices:
        for call in one.message.tool_calls if one.finish_reason != "length" else ():
            ended += 1
            schema = CITY if call.function.name == "get_weather" else {"maxProperties": 0}
            jsonschema.validate(json.loads(call.function.arguments), schema)
            assert one.finish_reason == ("tool_calls" if choice == "required" else "stop")
    assert ended >= 3


def test_a_stream_makes_the_calls_of_a_whole_answer(demo_service):
    fields = {"tool_choice": "required", "parallel_tool_calls": False, "seed": 3}
    [whole] = ask(demo_service, **fields).choices[0].message.tool_calls
    options = {"model": MODEL, "messages": QUESTION, "tools": [WEATHER, CLOCK], "max_tokens": 200}
    with demo_service.client().chat.completions.stream(**options, **fields) as stream:
        final = stream.get_final_completion().choices[0]
    [streamed] = final.message.tool_calls
    assert (streamed.function.name, streamed.function.arguments) == (whole.function.name, whole.function.arguments)
    assert final.finish_reason == "tool_calls"


def test_tools_that_the_model_does_not_call_change_nothing_of_its_ways_to_end(demo_service):
    choice = ask(demo_service, temperature=0).choices[0]
    assert choice.finish_reason in {"stop", "tool_calls"}
    assert choice.message.content or choice.message.tool_calls
