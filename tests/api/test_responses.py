"""POST /v1/responses through OpenAI's client: items, events in their order, tools, and refusals by the right name."""

import json
import random

import pytest
from openai import AsyncOpenAI, BadRequestError
from pydantic import BaseModel

from service.engine.request import FinishReason
from service.errors import ConstraintError
from tests.api.scripted_engine import MAX_MODEL_LEN, MODEL, TOKENIZER, Service, tokens
from tests.api.test_structured import text_of
from tests.api.test_tools import ONE, SCHEMA, TWO, service_of

pytestmark = pytest.mark.anyio

WEATHER = {"type": "function", "name": "weather", "description": "Now.", "parameters": SCHEMA}
CLOCK = {"type": "function", "name": "clock", "parameters": {"type": "object", "properties": {}}}
TOOLS = [WEATHER, CLOCK]
NAMED = {"type": "function", "name": "clock"}
ALLOWED = {"type": "allowed_tools", "mode": "required", "tools": [NAMED]}


def api_of(service):
    return AsyncOpenAI(api_key="none", base_url="http://test/v1", http_client=service.client(), max_retries=0)


async def create(service, **fields):
    return await api_of(service).responses.create(**({"model": MODEL, "input": "hi"} | fields))


async def events_of(service, **fields):
    stream = await create(service, stream=True, **fields)
    return [event async for event in stream]


async def refusal(service=None, **fields):
    with pytest.raises(BadRequestError) as refused:
        await create(service or service_of(ONE), **fields)
    return refused.value.body


def without_ids(item):
    return {name: value for name, value in item.to_dict().items() if name not in ("id", "call_id")}


async def test_a_text_is_one_message_with_usage_and_what_was_asked():
    service = Service()
    response = await create(service, instructions="Be brief.", max_output_tokens=32, temperature=0.5, user="u")
    assert response.output_text == "Hello world"
    assert response.id.startswith("resp_")
    [message] = response.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert (response.object, response.status, response.error, response.incomplete_details) == (
        "response", "completed", None, None,
    )  # fmt: skip
    assert (response.instructions, response.max_output_tokens, response.temperature) == ("Be brief.", 32, 0.5)
    assert (response.to_dict()["store"], response.previous_response_id) == (False, None)
    request = service.engine.last.request
    assert TOKENIZER.decode(request.prompt_ids).count("system:Be brief.") == 1
    usage = response.usage
    assert usage.input_tokens == len(request.prompt_ids)
    assert usage.output_tokens == len(tokens("Hello world"))
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens


async def test_the_choice_of_some_tools_is_enforced_and_stated():
    service = service_of('<tool_call>{"name": "clock", "arguments": {}}</tool_call>')
    response = await create(service, tools=TOOLS, tool_choice=ALLOWED)
    assert response.to_dict()["tool_choice"] == ALLOWED
    text = text_of(service.engine.last.request.constraint, random.Random(1))
    assert '"name": "clock"' in text
    assert "weather" not in text


async def test_a_grammar_that_cannot_be_followed_is_named_as_responses_name_it():
    failure = ConstraintError("Not so.", param="text.format.schema.pattern")
    assert (await refusal(Service([failure])))["param"] == "text.format.schema.pattern"
    response = await Service([*tokens("a"), failure]).post(
        "/v1/responses", {"model": MODEL, "input": "x", "stream": True}
    )
    last = json.loads(response.text.split("data: ")[-1])
    assert (last["type"], last["param"]) == ("error", "text.format.schema.pattern")


async def test_penalties_are_applied_and_stated():
    """They belong to Open Responses."""
    service = Service()
    response = await create(service, extra_body={"presence_penalty": 0.5, "frequency_penalty": -1})
    sampling = service.engine.last.request.sampling
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.5, -1)
    stated = response.to_dict()
    assert (stated["presence_penalty"], stated["frequency_penalty"]) == (0.5, -1)
    assert (await refusal(extra_body={"presence_penalty": 3}))["param"] == "presence_penalty"


async def test_a_limit_makes_the_response_and_its_last_item_incomplete():
    response = await create(Service(tokens("Hello world")), max_output_tokens=1)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert response.output[-1].status == "incomplete"
    *_, last = await events_of(Service(tokens("Hello world")), max_output_tokens=1)
    assert (last.type, last.response.status) == ("response.incomplete", "incomplete")


async def test_an_answer_without_text_is_an_empty_message():
    response = await create(Service([FinishReason.STOP]))
    assert [item.type for item in response.output] == ["message"]
    assert response.output_text == ""


async def test_a_stream_builds_what_the_whole_answer_has():
    events = await events_of(Service())
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    ]  # fmt: skip
    assert kinds[-4:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done", "response.completed",
    ]  # fmt: skip
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert "".join(event.delta for event in events[4:-4]) == events[-4].text == "Hello world"
    assert (events[0].response.status, events[0].response.output) == ("in_progress", [])
    assert (events[2].item.status, events[2].item.content) == ("in_progress", [])
    whole = await create(Service())
    assert [without_ids(item) for item in events[-1].response.output] == [without_ids(item) for item in whole.output]
    assert events[-1].response.usage == whole.usage
    assert len({event.item_id for event in events[3:-2]} | {events[2].item.id}) == 1


async def test_the_clients_own_helpers_understand_answers_and_streams():
    class City(BaseModel):
        city: str

    answer = '{"city": "Ulm"}'
    parsed = await api_of(service_of(answer)).responses.parse(model=MODEL, input="hi", text_format=City)
    assert parsed.output_parsed == City(city="Ulm")
    async with api_of(service_of(TWO)).responses.stream(model=MODEL, input="hi", tools=TOOLS) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert kinds[-1] == "response.completed"
    assert [item.type for item in final.output] == ["message", "function_call", "function_call"]


async def test_events_have_names_and_no_end_mark():
    async with Service().client() as client:
        answer = await client.post("/v1/responses", json={"model": MODEL, "input": "hi", "stream": True})
    frames = answer.text.strip().split("\n\n")
    for text in frames:
        name, data = text.split("\n")
        assert name == f"event: {json.loads(data.removeprefix('data: '))['type']}"
    assert "[DONE]" not in answer.text


async def test_calls_are_items_and_stream_in_pieces():
    whole = await create(service_of(TWO), tools=TOOLS)
    assert [item.type for item in whole.output] == ["message", "function_call", "function_call"]
    calls = whole.output[1:]
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [
        ("weather", {"city": "Ulm 🌍"}),
        ("clock", {}),
    ]
    assert len({call.call_id for call in calls}) == 2
    events = await events_of(service_of(TWO), tools=TOOLS)
    assert [without_ids(item) for item in events[-1].response.output] == [without_ids(item) for item in whole.output]
    for index, call in enumerate(calls, start=1):
        of_call = [e for e in events if getattr(e, "output_index", None) == index]
        assert [of_call[0].type, of_call[-2].type, of_call[-1].type] == [
            "response.output_item.added", "response.function_call_arguments.done", "response.output_item.done",
        ]  # fmt: skip
        assert of_call[0].item.arguments == ""
        assert "".join(e.delta for e in of_call[1:-2]) == of_call[-2].arguments == call.arguments


async def test_a_conversation_goes_on_with_the_items_of_an_answer():
    first = await create(service_of(ONE), tools=TOOLS)
    results = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"}
        for item in first.output
        if item.type == "function_call"
    ]
    service = service_of("Sunny.")
    items = [{"role": "user", "content": "Ulm?"}, *(item.to_dict() for item in first.output), *results]
    response = await create(service, input=items, tools=TOOLS)
    assert response.output_text == "Sunny."
    assert "sunny" in TOKENIZER.decode(service.engine.last.request.prompt_ids)


async def test_a_schema_is_enforced_and_repeated():
    service = Service()
    text_format = {"type": "json_schema", "name": "answer", "schema": SCHEMA, "strict": True}
    response = await create(service, text={"format": text_format})
    assert service.engine.last.request.constraint is not None
    assert response.text.format.schema_ == SCHEMA


async def test_log_probabilities_belong_to_the_text():
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    response = await create(Service(), **fields)
    [content] = response.output[0].content
    assert "".join(entry.token for entry in content.logprobs) == "Hello world"
    assert {len(entry.top_logprobs) for entry in content.logprobs} == {2}
    events = await events_of(Service(), **fields)
    streamed = [entry for e in events if e.type == "response.output_text.delta" for entry in e.logprobs]
    assert [entry.token for entry in streamed] == [entry.token for entry in content.logprobs]


async def test_a_failure_in_a_stream_is_its_last_event():
    service = Service([*tokens("Hello"), RuntimeError("lost")])
    async with service.client() as client:
        answer = await client.post("/v1/responses", json={"model": MODEL, "input": "hi", "stream": True})
    *_, before, last = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    assert (last["type"], last["code"]) == ("error", "internal_error")
    assert last["sequence_number"] == before["sequence_number"] + 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "text", "name": "a"}}}, "text.format.name"),
        (
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"uniqueItems": True}}}},
            "text.format.schema.uniqueItems",
        ),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"input": []}, "input"),
        ({"input": [{"role": "user", "content": "a", "output": "b"}]}, "input[0].output"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input[0].id"),
        ({"input": [{"id": "a"}]}, "input[0].id"),
        ({"input": [{"type": "compaction", "id": "a", "encrypted_content": "b"}]}, "input[0]"),
        ({"extra_body": {"n": 2}}, "n"),
        ({"truncation": "sometimes"}, "truncation"),
        ({"input": [{"type": "function_call_output", "call_id": "a", "output": "b"}]}, "input[0].call_id"),
        ({"tools": [CLOCK], "tool_choice": {"type": "mcp", "server_label": "a"}}, "tool_choice.type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://a"}]}]},
            "input[0].content[0].type",
        ),
        ({"tools": [CLOCK, CLOCK]}, "tools[1].name"),
        ({"tools": [CLOCK], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice.name"),
        ({"tools": [CLOCK], "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.tools"),
        ({"tools": [CLOCK], "tool_choice": {"type": "allowed_tools", "tools": [NAMED]}}, "tool_choice.mode"),
        ({"tools": [CLOCK], "tool_choice": {"type": "function", "name": "a", "mode": "auto"}}, "tool_choice.mode"),
        ({"tools": [WEATHER], "tool_choice": ALLOWED}, "tool_choice.tools[0].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {"tools": [CLOCK | {"parameters": {"type": "array"}}], "tool_choice": "required"},
            "tools[0].parameters.type",
        ),
        ({"temperature": 3}, "temperature"),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)
async def test_what_is_not_enforced_is_refused_by_its_name(fields, param):
    error = await refusal(service_of(ONE, max_model_len=MAX_MODEL_LEN), **fields)
    assert error["param"] == param
    assert "messages" not in error["message"]


async def test_what_clients_add_to_an_answer_may_come_back_with_it():
    part = {"type": "output_text", "text": "Four.", "annotations": [], "logprobs": [], "parsed": {"number": 4}}
    message = {"type": "message", "role": "assistant", "phase": "final_answer", "content": [part]}
    call = {"type": "function_call", "call_id": "a", "name": "clock", "arguments": "{}", "parsed_arguments": {}}
    result = {"type": "function_call_output", "call_id": "a", "output": "noon"}
    items = [{"role": "user", "content": "2 + 2?"}, message, call, result]
    service = Service()
    await create(service, input=items)
    assert "Four." in TOKENIZER.decode(service.engine.last.request.prompt_ids)
