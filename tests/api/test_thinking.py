"""Thinking over the API: split off under both of its names, whole and in streams, and sent back to the template."""

import numpy as np
import pytest
from tokenizers import AddedToken

from service.engine.request import FinishReason
from service.text.chat_template import ChatTemplate
from service.text.tokenizer import Tokenizer
from tests.api.scripted_engine import END, MODEL, TOKENIZER, Service, tokens
from tests.api.test_chat import events
from tests.api.test_responses import create, events_of
from tests.api.test_tools import ONE, TOOLS
from tests.text.small_tokenizers import byte_level

pytestmark = pytest.mark.anyio

# Thinking of earlier answers is rendered as Qwen's template does; `open` templates begin the thinking themselves.
TURNS = (
    "{% for tool in tools or [] %}{{ tool | tojson }}<tool_call>{% endfor %}{% for m in messages %}{{ m.role }}:"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}\n{% endfor %}"
)
TEMPLATES = {"closed": TURNS + "assistant:", "open": TURNS + "assistant:<think>\n"}
USAGE = {"include_usage": True}
THOUGHT = "<think>\nHm. 🌍\n</think>\n\nYes."


def service_of(text, template="closed", **model):
    chat_template = ChatTemplate(TEMPLATES[template], TOKENIZER.special_tokens)
    model = {"chat_template": chat_template, "max_model_len": 2048} | model
    return Service([*tokens(text), FinishReason.STOP], model=model)


def with_tags():
    """A tokenizer in which each tag is one token; its other ids are those of the script."""
    backend = byte_level(adds_begin=True)
    backend.add_tokens([AddedToken("</think>", special=False, normalized=False)])
    return Tokenizer(backend, special_tokens=TOKENIZER.special_tokens)


def is_closing_allowed(service):
    """Whether the closing tag may be the next token of the last request."""
    constraint, tokenizer = service.engine.last.request.constraint, service.readiness.model.tokenizer
    words = np.zeros((tokenizer.vocab_size + 31) // 32, np.uint32)
    constraint.fill_mask(words)
    closing_id = tokenizer.backend.token_to_id("</think>")
    return bool(words[closing_id // 32] >> closing_id % 32 & 1)


async def message_of(service, **fields):
    response = await service.chat(**fields)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["message"]


@pytest.mark.parametrize(("text", "template"), [(THOUGHT, "closed"), (THOUGHT.removeprefix("<think>\n"), "open")])
async def test_thinking_is_split_off_whole_and_in_streams(text, template):
    message = await message_of(service_of(text, template))
    assert (message["reasoning"], message["reasoning_content"], message["content"]) == ("Hm. 🌍", "Hm. 🌍", "Yes.")
    chunks = events(await service_of(text, template).chat(stream=True))[:-1]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning", "") for delta in deltas) == "Hm. 🌍"
    assert all(delta.get("reasoning") == delta.get("reasoning_content") for delta in deltas)
    assert "".join(delta.get("content", "") for delta in deltas) == "Yes."


async def test_an_answer_that_is_all_thinking_has_no_content():
    message = await message_of(service_of("<think>Hm."))
    assert (message["reasoning"], message["content"]) == ("Hm.", None)


async def test_an_answer_without_thinking_has_no_key_for_it():
    message = await message_of(service_of("Yes. <think>"))
    assert message == {"role": "assistant", "content": "Yes. <think>", "refusal": None}


async def test_calls_are_found_behind_the_thinking():
    message = await message_of(service_of(f"<think>It says <tool_call>.</think>{ONE}"), tools=TOOLS)
    assert message["reasoning"] == "It says <tool_call>."
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["weather"]


JSON = {"response_format": {"type": "json_object"}}
CONTINUED = {"continue_final_message": True, "add_generation_prompt": False}


def accept_all(service, text):
    """Hold that the grammar of the last request takes a text, and that the text may end there."""
    matcher = service.engine.last.request.constraint
    for token_id in tokens(text):
        matcher.accept(token_id)
    words = np.zeros((TOKENIZER.vocab_size + 31) // 32, np.uint32)
    matcher.fill_mask(words)
    assert words[END // 32] >> END % 32 & 1


@pytest.mark.parametrize("tools", [[], TOOLS], ids=["no tools", "tools"])
@pytest.mark.parametrize("template", ["open", "closed", "closed, unused"])
async def test_a_schema_holds_what_follows_thinking_whose_tags_are_text(template, tools):
    before = {"open": "Hm. {\n</think>\n\n", "closed": "<think>\nHm. {\n</think>\n\n"}.get(template, "")
    service = service_of(before + '{"a": 1}', template.partition(",")[0])
    message = await message_of(service, **JSON, **({"tools": tools} if tools else {}), stop=["x"])
    assert (message.get("reasoning"), message["content"]) == ("Hm. {" if before else None, '{"a": 1}')
    accept_all(service, before + '{"a": 1}')


async def test_a_stop_string_ends_a_schema_behind_thinking_only_where_it_may_end():
    service = service_of('Hm.</think>{"a": 1}', "open")
    message = await message_of(service, **JSON, stop=["a", "}"], include_stop_str_in_output=True)
    assert message["content"] == '{"a": 1}'


@pytest.mark.parametrize("template", ["open", "closed"])
async def test_a_pattern_behind_thinking_whose_tags_are_text_has_the_space_itself(template):
    text = ("" if template == "open" else "<think>") + "Hm.</think>\n\nyes"
    service = service_of(text, template)
    message = await message_of(service, structured_outputs={"regex": "\\s*yes"})
    assert (message["reasoning"], message["content"]) == ("Hm.", "\n\nyes")
    accept_all(service, text)


@pytest.mark.parametrize("template", ["open", "closed"])
async def test_required_calls_may_follow_a_thinking_whose_tags_are_text(template):
    call = '<tool_call>\n{"name": "clock", "arguments": {}}\n</tool_call>'
    text = ("" if template == "open" else "<think>\n") + f"Hm. <tool_call>\n</think>\n\n{call}"
    service = service_of(text, template)
    message = await message_of(service, tools=TOOLS, tool_choice="required")
    assert message["reasoning"].startswith("Hm.")
    assert [each["function"]["name"] for each in message["tool_calls"]] == ["clock"]
    constraint = service.engine.last.request.constraint
    for token_id in tokens(text):
        constraint.accept(token_id)


@pytest.mark.parametrize("template", ["open", "closed"])
async def test_a_grammar_holds_what_follows_the_thinking(template):
    tokenizer = with_tags()
    text = "Hm.\n</think>\n\n{}" if template == "open" else "<think>Hm.\n</think>\n\n{}"
    service = service_of("", template, tokenizer=tokenizer, vocab_size=tokenizer.vocab_size)
    service.engine.script[:0] = tokenizer.encode(text, add_special_tokens=False)
    message = await message_of(service, **JSON)
    assert (message["reasoning"], message["content"]) == ("Hm.", "{}")
    assert is_closing_allowed(service) == (template == "open")


async def test_white_space_that_a_pattern_holds_is_content():
    tokenizer = with_tags()
    service = service_of("", tokenizer=tokenizer, vocab_size=tokenizer.vocab_size)
    service.engine.script[:0] = tokenizer.encode("<think>Hm.</think>\n\nyes", add_special_tokens=False)
    message = await message_of(service, structured_outputs={"regex": "\\s*yes"})
    assert (message["reasoning"], message["content"]) == ("Hm.", "\n\nyes")


@pytest.mark.parametrize("fields", [CONTINUED, {}], ids=["continued", "new"])
async def test_a_prompt_behind_the_thinking_leaves_none(fields):
    tokenizer = with_tags()
    closed = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}</think>\n\n", TOKENIZER.special_tokens)
    template = {} if fields else {"chat_template": closed}
    service = service_of("{}", "open", tokenizer=tokenizer, vocab_size=tokenizer.vocab_size, **template)
    messages = [{"role": "assistant", "content": "{"}] if fields else [{"role": "user", "content": "hi"}]
    answer = await service.post("/v1/chat/completions", {"model": MODEL, "messages": messages} | JSON | fields)
    message = answer.json()["choices"][0]["message"]
    assert ("reasoning" in message, message["content"]) == (False, "{}")
    assert not is_closing_allowed(service)


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
async def test_thinking_that_is_sent_back_reaches_the_template(name):
    service = service_of("Yes.")
    earlier = {"role": "assistant", "content": "No.", name: "Because."}
    messages = [{"role": "user", "content": "hi"}, earlier, {"role": "user", "content": "Really?"}]
    answer = await service.post("/v1/chat/completions", {"model": MODEL, "messages": messages})
    assert answer.status_code == 200
    assert "<think>Because.</think>No." in TOKENIZER.decode(service.engine.last.request.prompt_ids)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "assistant", "content": "a", "reasoning": 1}, "messages[0].reasoning"),
    ],
)
async def test_thinking_that_cannot_be_is_refused_by_name(message, param):
    answer = await service_of("Yes.").post("/v1/chat/completions", {"model": MODEL, "messages": [message]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_response_has_an_item_of_thinking_which_can_be_sent_back():
    whole = await create(service_of(THOUGHT))
    assert [item.type for item in whole.output] == ["reasoning", "message"]
    [content] = whole.output[0].content
    assert (content.type, content.text, whole.output_text) == ("reasoning_text", "Hm. 🌍", "Yes.")
    streamed = await events_of(service_of(THOUGHT))
    kinds = [event.type for event in streamed]
    assert kinds[2:4] == ["response.output_item.added", "response.content_part.added"]
    assert "".join(e.delta for e in streamed if e.type == "response.reasoning_text.delta") == "Hm. 🌍"
    assert kinds.index("response.reasoning_text.done") < kinds.index("response.output_text.delta")
    service = service_of("Yes.")
    items = [
        {"role": "user", "content": "hi"},
        *(item.to_dict() for item in whole.output),
        {"role": "user", "content": "?"},
    ]
    await create(service, input=items)
    assert "<think>Hm. 🌍</think>Yes." in TOKENIZER.decode(service.engine.last.request.prompt_ids)


@pytest.mark.parametrize("stop", [[], ["never"]])
@pytest.mark.parametrize("together", [False, True])
async def test_the_tokens_of_the_thinking_are_counted_whole_and_in_streams(stop, together):
    service = service_of(THOUGHT)
    if together:
        service.engine.script[:-1] = [service.engine.script[:-1]]
    expected = {"reasoning_tokens": len(tokens("<think>\nHm. 🌍\n</think>"))}
    usage = (await service.chat(stop=stop)).json()["usage"]
    assert usage["completion_tokens_details"] == expected
    assert usage["completion_tokens"] == len(tokens(THOUGHT))
    assert events(await service.chat(stop=stop, stream=True, stream_options=USAGE))[-2]["usage"] == usage
    assert (await service.chat(stop=stop, n=2)).json()["usage"]["completion_tokens_details"][
        "reasoning_tokens"
    ] == 2 * (expected["reasoning_tokens"])
    whole, streamed = await create(service), await events_of(service)
    assert whole.usage.output_tokens_details.to_dict() == expected
    assert streamed[-1].response.usage == whole.usage


async def test_the_tokens_of_the_thinking_so_far_are_in_every_chunk_that_has_counts():
    got = events(await service_of(THOUGHT).chat(stream=True, stream_options=USAGE | {"continuous_usage_stats": True}))
    counts = [chunk["usage"]["completion_tokens_details"]["reasoning_tokens"] for chunk in got[:-1]]
    assert counts == sorted(counts)
    assert 0 <= counts[0] <= 1
    assert counts[-1] > 1
