"""The engine is told where the beginning of a chat ends that other chats have too: its instructions and tools."""

import pytest

from service.text.chat_template import ChatTemplate
from tests.api.scripted_engine import MODEL, TOKENIZER, Service

pytestmark = pytest.mark.anyio

TURNS = "{% for m in messages %}<|turn|>{{ m.role }}:{{ m.content | trim }}<|end|>{% endfor %}<|turn|>assistant:"
TOOLS = "{% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}{% endif %}"
BEHIND = (  # tools after the text of the first message
    "{% for m in messages %}<|turn|>{{ m.role }}:{{ m.content }}{% if loop.first %}" + TOOLS + "{% endif %}<|end|>"
    "{% endfor %}<|turn|>assistant:"
)
HIDDEN = "{% for m in messages %}{{ m.role }}{% endfor %}"
SYSTEM = {"role": "system", "content": " You are kind. Say hi to all users. "}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "What says hi?", "parameters": {}}}


async def request_of(source, *messages, path="/v1/chat/completions", states=True, **fields):
    facts = {"chat_template": ChatTemplate(source, {"bos_token": "<|begin|>"}), "keeps_states": states}
    service = Service(model={**facts, "max_model_len": 4096})
    answer = await service.post(path, {"model": MODEL, "messages": list(messages)} | fields)
    assert answer.status_code == 200, answer.text
    return service.engine.last.request


@pytest.mark.parametrize(
    ("source", "before"),
    [
        (TURNS, []),
        (TURNS, [SYSTEM, {"role": "developer", "content": "Be brief."}]),
        (TOOLS + TURNS, []),
        (TOOLS + TURNS, [SYSTEM]),
        (BEHIND, [SYSTEM]),
    ],
)
async def test_it_ends_where_the_words_of_the_first_turn_begin(source, before):
    for tools in ([], [CLOCK]) if TOOLS in source else ([],):
        ids = []
        for words in ("hi", "What is it?"):
            request = await request_of(source, *before, {"role": "user", "content": words}, tools=tools)
            text = TOKENIZER.backend.decode(request.prompt_ids[: request.shared_len], skip_special_tokens=False)
            assert text.endswith("<|turn|>user:")
            ids.append(request.prompt_ids)
        assert len({of_user[: request.shared_len] for of_user in ids}) == 1


async def test_of_a_longer_chat_it_is_the_same_and_of_one_that_is_cut_nothing():
    user, answer = {"role": "user", "content": "More."}, {"role": "assistant", "content": "hi"}
    first = await request_of(TURNS, SYSTEM, user)
    later = await request_of(TURNS, SYSTEM, user, answer, user)
    assert first.shared_len == later.shared_len > 0
    cut = await request_of(TURNS, SYSTEM, user, answer, user, truncate_prompt_tokens=30)
    assert cut.shared_len == 0


async def test_other_interfaces_tell_it_too():
    user = {"role": "user", "content": "What is it?"}
    fields = {"path": "/v1/messages", "system": "You are kind.", "max_tokens": 4}
    request = await request_of(TURNS, user, **fields)
    text = TOKENIZER.backend.decode(request.prompt_ids[: request.shared_len], skip_special_tokens=False)
    assert text == "<|turn|>system:You are kind.<|end|><|turn|>user:"


async def test_nothing_is_told_where_it_is_not_known_or_of_no_use():
    user = {"role": "user", "content": "hi"}
    assert (await request_of(HIDDEN, SYSTEM, user)).shared_len == 0
    assert (await request_of(TURNS, SYSTEM, user, states=False)).shared_len == 0
