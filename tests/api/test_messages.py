"""POST /v1/messages through Anthropic's client: blocks, events in their order, tools, thinking, errors."""

import json
import random

import httpx2
import pytest
from pydantic import BaseModel

from service.engine.request import FinishReason
from service.text.chat_template import ChatTemplate
from tests.api import test_thinking
from tests.api.scripted_engine import MODEL, TOKENIZER, Service, tokens
from tests.api.test_structured import text_of
from tests.api.test_tools import ONE, SCHEMA, TWO, service_of

# Importing Anthropic's client takes three seconds of a processor: one worker does, when it runs these tests.
pytestmark = [pytest.mark.anyio, pytest.mark.xdist_group("anthropic")]

WEATHER = {"name": "weather", "description": "Now.", "input_schema": SCHEMA}
CLOCK = {"name": "clock", "input_schema": {"type": "object", "properties": {}}}
TOOLS = [WEATHER, CLOCK]
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
HI = [{"role": "user", "content": "hi"}]
# Writes every role, calls with their ids, and the thinking.
TURNS = (
    "{% for tool in tools or [] %}{{ tool | tojson }}<tool_call>{% endfor %}{% for m in messages %}[{{ m.role }}]"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<{{ c.function.name }} {{ c.function.arguments | tojson }}>{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


def talker(text, *, reason=FinishReason.STOP, template=TURNS, **settings):
    """A service whose prompts show what the messages have become."""
    model = {"chat_template": ChatTemplate(template, TOKENIZER.special_tokens), "max_model_len": 2048}
    return Service([*tokens(text), reason], model=model, **settings)


def api_of(service, **options):
    import anthropic

    transport = httpx2.ASGITransport(service.app)
    client = httpx2.AsyncClient(transport=transport, base_url="http://test")
    options = {"api_key": "none"} | options
    return anthropic.AsyncAnthropic(base_url="http://test", http_client=client, max_retries=0, **options)


async def create(service, **fields):
    return await api_of(service).messages.create(**({"model": MODEL, "max_tokens": 512, "messages": HI} | fields))


async def refusal(service=None, **fields):
    import anthropic

    with pytest.raises(anthropic.BadRequestError) as refused:
        await create(service or service_of(ONE), **fields)
    assert refused.value.type == "invalid_request_error"
    return refused.value.body["error"]["details"]["param"]


async def prompt_of(messages, *, service=None, **fields):
    service = service or talker("ok")
    await create(service, messages=messages, **fields)
    return TOKENIZER.decode(service.engine.last.request.prompt_ids)


async def post(service, path="/v1/messages", headers=None, **fields):
    body = {"model": MODEL, "max_tokens": 512, "messages": HI} | fields
    return await service.post(path, body, headers=headers)


async def ignored_of(service=None, **fields):
    answer = await post(service or talker("ok"), **fields)
    assert answer.status_code == 200, answer.text
    return answer.headers.get("x-levserve-ignored", "").split(", ")


async def test_a_text_is_one_block_with_usage():
    service = Service()
    message = await create(
        service, system="Be brief.", max_tokens=64, extra_body={"temperature": 0.5, "top_k": 3, "top_p": 0.9}
    )
    assert [block.to_dict() for block in message.content] == [
        {"type": "text", "text": "Hello world", "citations": None}
    ]
    assert message.id.startswith("msg_")
    assert (message.type, message.role, message.model) == ("message", "assistant", MODEL)
    assert (message.stop_reason, message.stop_sequence) == ("end_turn", None)
    request = service.engine.last.request
    assert TOKENIZER.decode(request.prompt_ids).count("system:Be brief.") == 1
    assert (request.sampling.temperature, request.sampling.top_k, request.sampling.top_p) == (0.5, 3, 0.9)
    assert request.max_tokens == 64
    assert message.usage.input_tokens == len(request.prompt_ids)
    assert message.usage.output_tokens == len(tokens("Hello world"))
    assert (message.usage.cache_read_input_tokens, message.usage.cache_creation_input_tokens) == (0, 0)
    assert message._request_id.startswith("req_")


async def test_a_limit_beyond_the_context_is_the_rest_of_it_and_told():
    service = Service()
    assert "max_tokens" in await ignored_of(service, max_tokens=32_000)
    request = service.engine.last.request
    assert request.max_tokens == 256 - len(request.prompt_ids)
    assert await refusal(Service(), max_tokens=-5) == "max_tokens"


@pytest.mark.parametrize(
    ("script", "fields", "reason", "sequence"),
    [
        (tokens("Hello world"), {"max_tokens": 1}, "max_tokens", None),
        (tokens("Hello world"), {"stop_sequences": ["xyz", " wor"]}, "stop_sequence", " wor"),
    ],
)
async def test_a_stop_has_its_reason_whole_and_in_streams(script, fields, reason, sequence):
    message = await create(Service(script), **fields)
    assert (message.stop_reason, message.stop_sequence) == (reason, sequence)
    assert message.content[0].text == "Hello"
    async with api_of(Service(script)).messages.stream(
        model=MODEL, messages=HI, **({"max_tokens": 64} | fields)
    ) as stream:
        final = await stream.get_final_message()
    assert without_id(final) == without_id(message)


async def test_a_stream_has_anthropics_events_in_their_order_under_their_names():
    service = service_of(TWO)
    answer = await post(service, stream=True, tools=TOOLS)
    assert answer.headers["content-type"].startswith("text/event-stream")
    frames = [frame.split("\n") for frame in answer.text.strip().split("\n\n")]
    events = [json.loads(data.removeprefix("data: ")) for _, data in frames]
    assert [name for name, _ in frames] == [f"event: {event['type']}" for event in events]
    kinds = [event["type"] for event in events]
    assert (kinds[0], kinds[-2:]) == ("message_start", ["message_delta", "message_stop"])
    begun = events[0]["message"]
    assert (begun["content"], begun["stop_reason"], begun["usage"]["input_tokens"]) == (
        [], None, len(service.engine.last.request.prompt_ids)
    )  # fmt: skip
    for index in range(3):
        of_block = [event for event in events if event.get("index") == index]
        assert [event["type"] for event in of_block][:1] == ["content_block_start"]
        assert {event["type"] for event in of_block[1:-1]} == {"content_block_delta"}
        assert of_block[-1]["type"] == "content_block_stop"
    assert {event["delta"]["type"] for event in events if event.get("index") == 1 and "delta" in event} == {
        "input_json_delta"
    }
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None, "stop_details": None}
    assert events[-2]["usage"]["output_tokens"] > 0


async def test_the_clients_own_helpers_understand_answers_and_streams():
    class City(BaseModel):
        city: str

    parsed = await api_of(service_of('{"city": "Ulm"}')).messages.parse(
        model=MODEL, max_tokens=512, messages=HI, output_format=City
    )
    assert parsed.parsed_output == City(city="Ulm")
    whole = await create(service_of(TWO), tools=TOOLS)
    async with api_of(service_of(TWO)).messages.stream(model=MODEL, max_tokens=512, messages=HI, tools=TOOLS) as stream:
        texts = [text async for text in stream.text_stream]
        final = await stream.get_final_message()
    assert "".join(texts) == whole.content[0].text
    assert [without_id(block) for block in final.content] == [without_id(block) for block in whole.content]
    assert final.stop_reason == "tool_use"


def without_id(block):
    return {name: value for name, value in block.to_dict().items() if name != "id"}


async def test_calls_are_blocks():
    message = await create(service_of(TWO), tools=TOOLS)
    assert [block.type for block in message.content] == ["text", "tool_use", "tool_use"]
    calls = message.content[1:]
    assert [(call.name, call.input) for call in calls] == [("weather", {"city": "Ulm 🌍"}), ("clock", {})]
    assert len({call.id for call in calls}) == 2
    assert message.stop_reason == "tool_use"


async def test_a_call_that_a_limit_cuts_has_the_input_so_far():
    cut = ONE[: ONE.index("Ulm") + 2]
    message = await create(service_of(cut), tools=TOOLS, max_tokens=len(tokens(cut)))
    assert (message.stop_reason, message.content[-1].input) == ("max_tokens", {})


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "clock"}])
async def test_the_choice_decides_what_the_answer_is_held_to(choice):
    called = '<tool_call>{"name": "clock", "arguments": {}}</tool_call>'
    service = service_of(called)
    message = await create(service, tools=TOOLS, tool_choice=choice)
    assert message.stop_reason == "tool_use"
    text = text_of(service.engine.last.request.constraint, random.Random(1))
    assert text.lstrip().startswith("<tool_call>")
    assert choice["type"] == "any" or ('"clock"' in text and "weather" not in text)


async def test_no_tool_is_shown_or_called_where_none_may_be():
    service = talker(ONE)
    message = await create(service, tools=TOOLS, tool_choice={"type": "none"})
    assert [block.type for block in message.content] == ["text"]
    assert "weather" not in TOKENIZER.decode(service.engine.last.request.prompt_ids)


async def test_one_call_alone_is_one_call_alone():
    service = service_of(ONE)
    fields = {"tools": TOOLS, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    await create(service, **fields)
    one = service.engine.last.request.constraint
    assert text_of(one, random.Random(3)).count("<tool_call>") == 1


@pytest.mark.parametrize("as_sent", [lambda m: m.content, lambda m: m.model_dump()["content"], None])
async def test_a_tool_loop_goes_on_with_the_answer_as_an_object_or_dumped(as_sent):
    first = await create(service_of(TWO), tools=TOOLS)
    calls = [block for block in first.content if block.type == "tool_use"]
    results = [
        {"type": "tool_result", "tool_use_id": calls[0].id, "content": "sunny"},
        {"type": "tool_result", "tool_use_id": calls[1].id, "is_error": True,
         "content": [{"type": "text", "text": "no clock", "cache_control": {"type": "ephemeral"}}]},
    ]  # fmt: skip
    answer = first.model_dump() if as_sent is None else {"role": "assistant", "content": as_sent(first)}
    user = {"role": "user", "content": [{"type": "text", "text": "And now?"}, *results]}
    prompt = await prompt_of([*HI, answer, user], tools=TOOLS)
    assert prompt.endswith(
        '[user]hi[assistant]Wait.\n<weather {"city": "Ulm 🌍"}><clock {}>'
        "[tool]sunny[tool]Error: no clock[user]And now?[assistant]"
    )


async def test_turns_of_one_role_are_one_message_and_a_system_may_speak_in_the_middle():
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "<a>\n\n"}, {"type": "text", "text": "one"}]},
        {"role": "user", "content": "two"},
        {"role": "system", "content": [{"type": "text", "text": "be quick"}]},
        {"role": "assistant", "content": "three"},
        {"role": "assistant", "content": "four"},
        {"role": "user", "content": ""},
    ]
    prompt = await prompt_of(messages, system=[{"type": "text", "text": "S"}, {"type": "text", "text": "T"}])
    assert prompt == "[system]S\nT[user]<a>\n\none\ntwo[system]be quick[assistant]three\nfour[user][assistant]"


NO_LATE_SYSTEM = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('too late') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


async def test_a_system_in_the_middle_is_part_of_the_users_turn_where_the_template_refuses_it():
    late = {"role": "system", "content": "be quick"}
    messages = [*HI, late, {"role": "assistant", "content": "three"}, late, *HI]
    prompt = await prompt_of(messages, service=talker("ok", template=NO_LATE_SYSTEM), system="S")
    assert prompt == "[system]S[user]hi\n\nbe quick[assistant]three[user]be quick\n\nhi[assistant]"


async def test_an_answer_goes_on_with_the_text_of_the_last_message():
    prompt = await prompt_of([*HI, {"role": "assistant", "content": "The best answer is ("}])
    assert prompt == "[user]hi[assistant]The best answer is ("


async def test_claude_codes_billing_line_does_not_change_the_prompt():
    """It has another hash in every request."""
    blocks = [{"type": "text", "text": "You are Claude Code."}]
    lines = [
        f"x-anthropic-billing-header: cc_version=2.1.331.{digest}; cc_entrypoint=cli;" for digest in ("a1f", "07c")
    ]
    prompts = {await prompt_of(HI, system=[{"type": "text", "text": line}, *blocks]) for line in lines}
    prompts |= {await prompt_of(HI, system=f"{line}\nYou are Claude Code.") for line in lines}
    assert prompts == {"[system]You are Claude Code.[user]hi[assistant]"}


async def test_documents_of_text_and_search_results_are_read():
    document = {
        "type": "document",
        "title": "Tides",
        "source": {"type": "text", "media_type": "text/plain", "data": "high"},
    }
    parts = {"type": "content", "content": [{"type": "text", "text": "low"}]}
    found = {"type": "search_result", "source": "u://x", "title": "X", "content": [{"type": "text", "text": "found"}]}
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "weather", "input": {}}]}
    result = {
        "type": "tool_result",
        "tool_use_id": "t1",
        "content": [found, {"type": "tool_reference", "tool_name": "w"}],
    }
    messages = [
        {"role": "user", "content": [document, {"type": "document", "source": parts}, found]},
        call,
        {"role": "user", "content": [result]},
    ]
    assert await prompt_of(messages) == (
        "[user]Tides\nhigh\nlow\nX\nu://x\nfound[assistant]<weather {}>[tool]X\nu://x\nfound\nw[assistant]"
    )


THOUGHT = "<think>\nHm. 🌍\n</think>\n\nYes."


async def thought(service, **fields):
    return await create(service, thinking={"type": "enabled", "budget_tokens": 1024}, **fields)


async def test_thinking_is_a_signed_block_whole_and_in_streams():
    message = await thought(test_thinking.service_of(THOUGHT))
    assert [(block.type, block.to_dict()[block.type]) for block in message.content] == [
        ("thinking", "Hm. 🌍"), ("text", "Yes."),
    ]  # fmt: skip
    assert message.content[0].signature
    assert message.usage.output_tokens_details.thinking_tokens > 0
    async with api_of(test_thinking.service_of(THOUGHT)).messages.stream(
        model=MODEL, max_tokens=64, messages=HI, thinking={"type": "adaptive"}
    ) as stream:
        kinds = [event.delta.type async for event in stream if event.type == "content_block_delta"]
        final = await stream.get_final_message()
    assert list(dict.fromkeys(kinds)) == ["thinking_delta", "signature_delta", "text_delta"]
    assert [block.to_dict() for block in final.content] == [block.to_dict() for block in message.content]


@pytest.mark.parametrize("display", ["summarized", "omitted"])
async def test_thinking_that_is_sent_back_reaches_the_template(display):
    thinking = {"type": "adaptive", "display": display}
    first = await create(test_thinking.service_of(THOUGHT), thinking=thinking)
    assert first.content[0].thinking == ("Hm. 🌍" if display == "summarized" else "")
    service = talker("ok")
    messages = [*HI, {"role": "assistant", "content": first.content}, *HI]
    prompt = await prompt_of(messages, service=service, thinking=thinking)
    assert prompt == "[user]hi[assistant]<think>Hm. 🌍</think>Yes.[user]hi[assistant]"


async def test_thinking_of_another_service_or_key_is_left_out_and_told():
    first = await thought(test_thinking.service_of(THOUGHT))
    own = first.content[0].to_dict()
    blocks = [
        own | {"thinking": "Hm!"},
        {"type": "thinking", "thinking": "unsigned"},
        {"type": "thinking", "thinking": "", "signature": "Zm9yZ2Vk"},
        {"type": "redacted_thinking", "data": "c2VjcmV0"},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
        {"type": "text", "text": "Yes."},
    ]
    messages = [*HI, {"role": "assistant", "content": blocks}, *HI]
    assert await prompt_of(messages) == "[user]hi[assistant]Yes.[user]hi[assistant]"
    assert await ignored_of(messages=messages) == ["messages[].content[].thinking", "messages[].content[].type"]
    with_own = [*HI, {"role": "assistant", "content": [own]}, *HI]
    assert await ignored_of(messages=with_own) == [""]
    other = await post(talker("ok", api_keys=("sk-2",)), headers={"x-api-key": "sk-2"}, messages=with_own)
    assert other.headers["x-levserve-ignored"] == "messages[].content[].thinking"


SWITCH = TURNS + "{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}{{ reasoning_effort }}"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"thinking": {"type": "disabled"}}, "False"),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, "False"),
        ({"thinking": {"type": "adaptive"}}, "True"),
        ({"output_config": {"effort": "xhigh"}}, "high"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2000}, "output_config": {"effort": "low"}}, "low"),
        ({}, ""),
    ],
)
async def test_a_level_of_thinking_reaches_the_template(fields, expected):
    prompt = await prompt_of(HI, service=talker("ok", template=SWITCH), **fields)
    assert prompt.rpartition("[assistant]")[2] == expected


async def test_a_schema_is_enforced_under_both_of_its_names():
    output_format = {"type": "json_schema", "schema": SCHEMA}
    for fields in ({"output_format": output_format}, {"output_config": {"format": output_format}}):
        service = talker("{}")
        assert (await post(service, **fields)).status_code == 200
        assert service.engine.last.request.constraint is not None
    bad = {
        "type": "json_schema",
        "schema": {"type": "object", "properties": {"a": {"type": "string", "$ref": "#/nowhere"}}},
    }
    answer = await post(talker("{}"), output_config={"format": bad})
    assert answer.json()["error"]["details"]["param"].startswith("output_config.format.schema.properties.a")


async def test_hints_are_accepted_and_told():
    cached = {"cache_control": {"type": "ephemeral"}}
    hints = {
        "service_tier": "standard_only",
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "metadata": {"user_id": "u-1"},
        "mcp_servers": [],
    }
    assert await ignored_of(**hints) == [""]
    told = {
        "service_tier": "priority",
        "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
        "mcp_servers": [{"type": "url", "url": "https://x", "name": "x"}],
        "container": "c",
        "system": [{"type": "text", "text": "S"} | cached],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"} | cached]}],
        "thinking": {"type": "between_tools"},
        "tools": [SEARCH, WEATHER | {"defer_loading": True}],
        "never_heard": 1,
    }
    assert set(await ignored_of(service_of("ok"), **told)) == {
        "service_tier", "context_management", "mcp_servers", "container", "system[].cache_control",
        "messages[].content[].cache_control", "thinking.type", "tools[].type", "tools[].defer_loading", "never_heard",
    }  # fmt: skip


async def test_tools_that_anthropic_runs_are_offered_to_nobody():
    kinds = (
        "web_search_20250305",
        "bash_20250124",
        "text_editor_20250728",
        "computer_20250124",
        "code_execution_20250522",
    )
    typed = [{"type": kind, "name": kind.split("_")[0]} for kind in kinds]
    prompt = await prompt_of(HI, tools=[*typed, WEATHER])
    assert "weather" in prompt
    assert "bash" not in prompt
    bad = WEATHER | {"input_schema": {"type": "object", "properties": {"a": {"type": "string", "$ref": "#/nowhere"}}}}
    assert (await refusal(tools=[*typed, bad], tool_choice={"type": "any"})).startswith("tools[5].input_schema.")
    assert (
        await refusal(tools=[SEARCH, WEATHER], tool_choice={"type": "tool", "name": "web_search"}) == "tool_choice.name"
    )


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
PDF = {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}}
CALL = {"type": "tool_use", "id": "t1", "name": "clock", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t1"}


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "tool", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": [IMAGE]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://a/"}}]}],
         "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "file_1"}}]}],
         "messages[0].content[0].source"),
        ([*HI, {"role": "assistant", "content": [IMAGE]}], "messages[1].content[0].type"),
        ([{"role": "user", "content": [PDF]}], "messages[0].content[0].source.type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [RESULT]}], "messages[0].content[0].tool_use_id"),
        ([{"role": "user", "content": [RESULT]}, {"role": "assistant", "content": [CALL]}],
         "messages[0].content[0].tool_use_id"),
        ([*HI, {"role": "assistant", "content": [CALL]}, {"role": "user", "content": [RESULT | {"tool_use_id": "t2"}]}],
         "messages[2].content[0].tool_use_id"),
        ([{"role": "user", "content": [CALL]}], "messages[0].content[0].type"),
        ([*HI, {"role": "assistant", "content": [RESULT]}], "messages[1].content[0].type"),
    ],
)  # fmt: skip
async def test_messages_at_fault_are_refused_by_their_place(messages, param):
    answer = await post(service_of(ONE), messages=messages)
    assert (answer.status_code, answer.json()["error"]["details"]["param"]) == (400, param)


@pytest.mark.parametrize(
    ("messages", "prompt"),
    [
        ([{"role": "assistant", "content": "I begin."}, *HI], "[assistant]I begin.[user]hi[assistant]"),
        ([*HI, {"role": "assistant", "content": []}], "[user]hi[assistant][assistant]"),
        ([*HI, {"role": "assistant", "content": [CALL]}], "[user]hi[assistant]<clock {}>[assistant]"),
        ([*HI, {"role": "assistant", "content": [CALL]}, {"role": "user", "content": [RESULT]}],
         "[user]hi[assistant]<clock {}>[tool][assistant]"),
        ([*HI, {"role": "assistant", "content": [CALL]},
          {"role": "user", "content": [RESULT | {"content": [IMAGE, {"type": "text", "text": "12:00"}]}]}],
         "[user]hi[assistant]<clock {}>[tool]12:00[assistant]"),
    ],
)  # fmt: skip
async def test_messages_in_an_odd_order_are_accepted(messages, prompt):
    assert await prompt_of(messages) == prompt


async def test_tokens_are_counted_as_a_message_has_them():
    service = talker("ok")
    fields = {"system": "S", "tools": TOOLS, "thinking": {"type": "adaptive"}}
    counted = await api_of(service).messages.count_tokens(model=MODEL, messages=HI, **fields)
    message = await create(service, **fields)
    assert counted.input_tokens == message.usage.input_tokens > 0
    long = [{"role": "user", "content": "word " * 5000}]
    assert (await api_of(service).messages.count_tokens(model=MODEL, messages=long)).input_tokens > 2048


async def test_a_long_body_is_answered_like_a_short_one():
    service = talker("ok")
    first = await thought(test_thinking.service_of(THOUGHT))
    told = [{"type": "thinking", "thinking": "forged", "signature": "x"}, *[block.to_dict() for block in first.content]]
    messages = [*HI, {"role": "assistant", "content": told}, *HI]
    short = await prompt_of(messages, service=service)
    system = [{"type": "text", "text": "x-anthropic-billing-header: " + "y" * 300_000}]
    answer = await post(service, messages=messages, system=system)
    assert answer.headers["x-levserve-ignored"] == "messages[].content[].thinking"
    assert TOKENIZER.decode(service.engine.last.request.prompt_ids) == short
    counted = await post(service, "/v1/messages/count_tokens", messages=messages, system=system)
    assert counted.json() == {"input_tokens": len(service.engine.last.request.prompt_ids)}


async def test_cached_tokens_are_not_counted_as_input_twice():
    service = Service()
    submit = service.engine.submit

    def submit_with_cached(request):
        stream = submit(request)
        stream.num_cached_tokens = 7
        return stream

    service.engine.submit = submit_with_cached
    message = await create(service)
    assert message.usage.cache_read_input_tokens + message.usage.input_tokens == len(
        service.engine.last.request.prompt_ids
    )


def is_anthropics(answer, kind, code):
    body = answer.json()
    assert body["type"] == "error"
    assert (body["error"]["type"], body["error"]["details"]["error_code"]) == (kind, code)
    assert body["error"]["message"]
    assert body["request_id"] == answer.headers["request-id"] == answer.headers["x-request-id"]
    return True


async def test_errors_from_anywhere_have_anthropics_shape():
    assert is_anthropics(await post(Service(), model="other"), "not_found_error", "model_not_found")
    assert is_anthropics(await post(Service(api_keys=("a",))), "authentication_error", "invalid_api_key")
    large = await post(Service(max_body_bytes=100), system="x" * 200)
    assert large.status_code == 413
    assert is_anthropics(large, "request_too_large", "request_too_large")
    assert is_anthropics(await post(Service(), "/v1/messages/batches"), "not_found_error", "unknown_url")
    failing = Service([RuntimeError("lost")])
    assert is_anthropics(await post(failing), "api_error", "internal_error")
    async with Service().client() as client:
        assert is_anthropics(await client.get("/v1/messages"), "invalid_request_error", "method_not_allowed")
        text = await client.post("/v1/messages", content=b"{", headers={"content-type": "application/json"})
    assert text.json()["error"]["type"] == "invalid_request_error"
    elsewhere = await Service(api_keys=("a",)).post("/v1/messagesx", {})
    assert elsewhere.json().keys() == {"error"}


async def test_a_failure_in_a_stream_is_an_error_event():
    import anthropic

    service = Service([*tokens("Hello"), RuntimeError("lost")])
    answer = await post(service, stream=True)
    name, data = answer.text.strip().split("\n\n")[-1].split("\n")
    assert name == "event: error"
    event = json.loads(data.removeprefix("data: "))
    assert (event["type"], event["error"]["type"]) == ("error", "api_error")
    with pytest.raises(anthropic.APIStatusError, match="The server had an error"):
        async with api_of(Service([*tokens("Hello"), RuntimeError("lost")])).messages.stream(
            model=MODEL, max_tokens=64, messages=HI
        ) as stream:
            await stream.get_final_message()


async def test_the_clients_own_keys_open():
    import anthropic

    service = Service(api_keys=("sk-1", "sk-2"))
    for options in ({"api_key": "sk-1"}, {"api_key": None, "auth_token": "sk-2"}):
        message = await api_of(service, **options).messages.create(model=MODEL, max_tokens=8, messages=HI)
        assert message.content
    with pytest.raises(anthropic.AuthenticationError):
        await api_of(service, api_key="sk-3").messages.create(model=MODEL, max_tokens=8, messages=HI)


UNENFORCEABLE = WEATHER | {"input_schema": {"type": "object", "properties": {"a": {"type": "string", "not": {}}}}}


async def test_what_a_tools_grammar_leaves_out_is_named_by_its_place_in_the_request():
    service = service_of("ok")
    told = "tools[].input_schema.properties.a.not"
    assert set(await ignored_of(service, tools=[SEARCH, UNENFORCEABLE])) == {"tools[].type", told}
    counted = service.metrics.registry.get_sample_value
    assert counted("levserve_ignored_fields_total", {"field": "tools[].input_schema"}) == 1
    answer = await post(Service(model={"chat_template": service.readiness.model.chat_template}, strict_fields=True),
                        tools=[CLOCK, UNENFORCEABLE])  # fmt: skip
    param = "tools[1].input_schema.properties.a.not"
    assert (answer.status_code, answer.json()["error"]["details"]["param"]) == (400, param)


async def test_a_strict_tool_keeps_its_promise_or_is_named():
    loose = WEATHER | {"strict": True, "input_schema": SCHEMA | {"required": []}}
    assert await ignored_of(service_of("ok"), tools=[WEATHER | {"strict": True}]) == [""]
    assert await ignored_of(service_of("ok"), tools=[loose]) == ["tools[].strict"]
    strict = UNENFORCEABLE["input_schema"] | {"required": ["a"], "additionalProperties": False}
    assert await refusal(tools=[UNENFORCEABLE | {"strict": True, "input_schema": strict}]) == (
        "tools[0].input_schema.properties.a.not"
    )


async def test_the_next_turn_begins_with_the_prompt_and_the_answer_of_the_one_before():
    service = talker(THOUGHT)
    fields = {"system": "S", "thinking": {"type": "adaptive"}}
    first = await create(service, **fields)
    before = TOKENIZER.decode(service.engine.last.request.prompt_ids)
    after = await prompt_of([*HI, {"role": "assistant", "content": first.content}, *HI], **fields)
    assert after.startswith(before)
    assert after.removeprefix(before) == "<think>Hm. 🌍</think>Yes.[user]hi[assistant]"
