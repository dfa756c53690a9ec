"""Answers that clients send back as history: in every form that they have them, the prompt has the same tokens."""

import json

import httpx2
import openai
import pytest

from service.engine.request import FinishReason
from service.text.chat_template import ChatTemplate
from tests.api.scripted_engine import MODEL, TOKENIZER, Service, tokens

pytestmark = pytest.mark.anyio

TEMPLATE = """
{%- for tool in tools or [] %}{{ tool | tojson }}<tool_call>{% endfor -%}
{%- for message in messages -%}
    {{- message.role }}:
    {%- if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif -%}
    {{- message.content or "" -}}
    {%- for call in message.tool_calls or [] -%}
        {{- call.function.name }}{{ call.function.arguments | tojson }}
    {%- endfor -%}
{%- endfor -%}
"""
THOUGHT, TEXT, ARGUMENTS = "I must look.", "Wait.", {"city": "Ulm"}
CALL = f'<tool_call>\n{{"name": "weather", "arguments": {json.dumps(ARGUMENTS)}}}\n</tool_call>'
# What the model writes, and what of it belongs to which part of a message.
ANSWERS = {
    "text": (TEXT, {"content": TEXT}),
    "call": (CALL, {"arguments": ARGUMENTS}),
    "text and call": (f"{TEXT}\n{CALL}", {"content": f"{TEXT}\n", "arguments": ARGUMENTS}),
    "thought and call": (f"<think>\n{THOUGHT}\n</think>\n\n{CALL}", {"thought": THOUGHT, "arguments": ARGUMENTS}),
}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "weather", "description": "Now.", "parameters": SCHEMA}
QUESTION = {"role": "user", "content": "How is it in Ulm?"}
RESULT = '{"degrees": 7}'


def service_of(text):
    template = ChatTemplate(TEMPLATE, TOKENIZER.special_tokens)
    return Service([*tokens(text), FinishReason.STOP], model={"chat_template": template, "max_model_len": 2048})


def client_of(service):
    return openai.AsyncOpenAI(api_key="none", base_url="http://test/v1", http_client=service.client(), max_retries=0)


@pytest.fixture(params=ANSWERS)
def answer(request):
    """The text of an answer, and its parts."""
    return ANSWERS[request.param]


CHAT_TOOL = {"type": "function", "function": FUNCTION}


async def ask(client, messages=(QUESTION,), **fields):
    return await client.chat.completions.create(model=MODEL, messages=list(messages), tools=[CHAT_TOOL], **fields)


async def whole_message(client):
    return (await ask(client)).choices[0].message


async def helped_message(client):
    """What the client's own helper has added up."""
    async with client.chat.completions.stream(model=MODEL, messages=[QUESTION], tools=[CHAT_TOOL]) as stream:
        return (await stream.get_final_completion()).choices[0].message


async def added_message(client):
    """What a loop adds up that keeps whatever a delta has."""
    message = {}
    async for chunk in await ask(client, stream=True):
        for name, value in chunk.choices[0].delta.model_dump(exclude_none=True).items():
            if name != "tool_calls":
                message[name] = value if name == "role" else message.get(name, "") + value
                continue
            for call in value:
                calls = message.setdefault("tool_calls", [])
                if call["index"] == len(calls):
                    calls.append(call)
                else:
                    calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return message


MESSAGES = {
    "object": whole_message,
    "model_dump": lambda client: _dumped(whole_message(client)),
    "model_dump without nulls": lambda client: _dumped(whole_message(client), exclude_none=True),
    "to_dict": lambda client: _as_dict(whole_message(client)),
    "streamed by the helper": helped_message,
    "streamed and dumped": lambda client: _dumped(helped_message(client)),
    "streamed and added up": added_message,
}


async def _dumped(message, **options):
    return (await message).model_dump(**options)


async def _as_dict(message):
    return (await message).to_dict()


def plain_chat(parts, call_id):
    """The message as a client writes it that knows the specification alone."""
    message = {"role": "assistant", "content": parts.get("content")}
    if "thought" in parts:
        message["reasoning_content"] = parts["thought"]
    if call_id is not None:
        function = {"name": "weather", "arguments": json.dumps(parts["arguments"])}
        message["tool_calls"] = [{"id": call_id, "type": "function", "function": function}]
    return message


@pytest.mark.parametrize("form", MESSAGES)
async def test_a_chats_answer_is_taken_back_in_every_form_of_openais_client(answer, form):
    text, parts = answer
    service = service_of(text)
    async with client_of(service) as client:
        message = await MESSAGES[form](client)
        calls = message.get("tool_calls") if isinstance(message, dict) else message.tool_calls
        call_id = (calls[0]["id"] if isinstance(calls[0], dict) else calls[0].id) if calls else None
        assert (call_id is not None) == ("arguments" in parts)
        result = [{"role": "tool", "tool_call_id": call_id, "content": RESULT}] if calls else [QUESTION]
        await ask(client, [QUESTION, message, *result])
        sent_back = service.engine.last.request.prompt_ids
        await ask(client, [QUESTION, plain_chat(parts, call_id), *result])
    assert sent_back == service.engine.last.request.prompt_ids


RESPONSES_TOOL = {"type": "function", "strict": False, **FUNCTION}


async def respond(client, items=(QUESTION,), **fields):
    return await client.responses.create(model=MODEL, input=list(items), tools=[RESPONSES_TOOL], store=False, **fields)


async def whole_output(client):
    return (await respond(client)).output


async def streamed_output(client):
    """The items that are done, as a stream has them."""
    items = [event.item async for event in await respond(client, stream=True) if event.type.endswith("item.done")]
    assert items
    return items


async def _dumped_items(items, **options):
    return [item.model_dump(**options) for item in await items]


OUTPUTS = {
    "objects": whole_output,
    "model_dump": lambda client: _dumped_items(whole_output(client)),
    "model_dump without nulls": lambda client: _dumped_items(whole_output(client), exclude_none=True),
    "streamed": streamed_output,
    "streamed and dumped": lambda client: _dumped_items(streamed_output(client)),
}


def plain_items(parts, call_id):
    """The items as a client writes them that knows the specification alone."""
    items = []
    if "thought" in parts:
        content = [{"type": "reasoning_text", "text": parts["thought"]}]
        items.append({"type": "reasoning", "id": "rs_1", "summary": [], "content": content})
    if "content" in parts:
        items.append({"role": "assistant", "content": parts["content"]})
    if call_id is not None:
        arguments = json.dumps(parts["arguments"])
        items.append({"type": "function_call", "call_id": call_id, "name": "weather", "arguments": arguments})
    return items


@pytest.mark.parametrize("form", OUTPUTS)
async def test_a_responses_items_are_taken_back_in_every_form_of_openais_client(answer, form):
    text, parts = answer
    service = service_of(text)
    async with client_of(service) as client:
        items = await OUTPUTS[form](client)
        found = [item if isinstance(item, dict) else item.model_dump() for item in items]
        call_id = next((item["call_id"] for item in found if item["type"] == "function_call"), None)
        assert (call_id is not None) == ("arguments" in parts)
        result = [{"type": "function_call_output", "call_id": call_id, "output": RESULT}] if call_id else [QUESTION]
        await respond(client, [QUESTION, *items, *result])
        sent_back = service.engine.last.request.prompt_ids
        await respond(client, [QUESTION, *plain_items(parts, call_id), *result])
    assert sent_back == service.engine.last.request.prompt_ids


MESSAGES_TOOL = {"name": "weather", "description": "Now.", "input_schema": SCHEMA}


async def message_of(client, messages=(QUESTION,)):
    options = {"model": MODEL, "max_tokens": 100, "tools": [MESSAGES_TOOL]}
    return await client.messages.create(messages=list(messages), **options)


async def whole_content(client):
    return (await message_of(client)).content


async def streamed_content(client):
    options = {"model": MODEL, "max_tokens": 100, "tools": [MESSAGES_TOOL]}
    async with client.messages.stream(messages=[QUESTION], **options) as stream:
        return (await stream.get_final_message()).content


CONTENTS = {
    "objects": whole_content,
    "model_dump": lambda client: _dumped_items(whole_content(client)),
    "model_dump without nulls": lambda client: _dumped_items(whole_content(client), exclude_none=True),
    "streamed": streamed_content,
    "streamed and dumped": lambda client: _dumped_items(streamed_content(client)),
}


@pytest.mark.parametrize("form", CONTENTS)
async def test_a_messages_blocks_are_taken_back_in_every_form_of_anthropics_client(answer, form):
    import anthropic

    text, parts = answer
    service = service_of(text)
    http_client = httpx2.AsyncClient(transport=httpx2.ASGITransport(service.app))
    options = {"base_url": "http://test", "http_client": http_client, "max_retries": 0}
    async with anthropic.AsyncAnthropic(api_key="none", **options) as client:
        content = await CONTENTS[form](client)
        found = [block if isinstance(block, dict) else block.model_dump() for block in content]
        call_id = next((block["id"] for block in found if block["type"] == "tool_use"), None)
        assert (call_id is not None) == ("arguments" in parts)
        result = [{"type": "tool_result", "tool_use_id": call_id, "content": RESULT}]
        following = {"role": "user", "content": result} if call_id else QUESTION
        await message_of(client, [QUESTION, {"role": "assistant", "content": content}, following])
    sent_back = service.engine.last.request.prompt_ids
    async with client_of(service) as client:
        result = {"role": "tool", "tool_call_id": call_id, "content": RESULT} if call_id else QUESTION
        await ask(client, [QUESTION, plain_chat(parts, call_id), result])
    assert sent_back == service.engine.last.request.prompt_ids
