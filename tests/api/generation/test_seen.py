"""What the client sees is what stops, limits, log-probabilities and token ids are tied to, on every route."""

import json

import pytest

from service.api.generation.logprobs import CompletionLogprobsParts
from service.engine.request import FinishReason, TokenLogprobs
from service.text.chat_template import ChatTemplate
from service.text.tokenizer import Tokenizer
from tests.api.scripted_engine import END, MODEL, TOKENIZER, Service, StopToken, tokens
from tests.api.test_chat import events
from tests.text.small_tokenizers import byte_level, metaspace

pytestmark = pytest.mark.anyio

TEMPLATE = ChatTemplate(
    "{{ tools }}<tool_call>{% if false %}<think></think>{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}",
    TOKENIZER.special_tokens,
)
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>'
FUNCTION = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
TOOLS = [{"type": "function", "function": FUNCTION}]
THOUGHT = "<think>\nSTOP or not?\n</think>\n\n"


def service_of(text, *, reason=FinishReason.STOP, **model):
    return Service([*tokens(text), reason], model={"chat_template": TEMPLATE, "max_model_len": 2048} | model)


def seen_in_chat(answer):
    message = answer["choices"][0]["message"]
    calls = [call["function"]["name"] for call in message.get("tool_calls", ())]
    return message["content"] or "", message.get("reasoning", ""), calls


def seen_in_response(answer):
    texts = {"message": "", "reasoning": ""}
    for item in answer["output"]:
        if item["type"] in texts:
            texts[item["type"]] += "".join(part["text"] for part in item["content"])
    return *texts.values(), [item["name"] for item in answer["output"] if item["type"] == "function_call"]


def seen_in_message(answer):
    texts = {"text": "", "thinking": ""}
    for block in answer["content"]:
        if block["type"] in texts:
            texts[block["type"]] += block[block["type"]]
    return *texts.values(), [block["name"] for block in answer["content"] if block["type"] == "tool_use"]


def seen_by_ollama(answer):
    message = answer["message"]
    calls = [call["function"]["name"] for call in message.get("tool_calls", ())]
    return message["content"], message.get("thinking", ""), calls


HI = [{"role": "user", "content": "hi"}]
ROUTES = {
    "chat": ("/v1/chat/completions", {"messages": HI, "tools": TOOLS}, lambda stop: {"stop": stop}, seen_in_chat),
    "responses": (
        "/v1/responses",
        {"input": "hi", "tools": [{"type": "function", **FUNCTION}]},
        lambda stop: {"stop": stop},
        seen_in_response,
    ),
    "messages": (
        "/v1/messages",
        {"messages": HI, "max_tokens": 999, "tools": [{"name": "weather", "input_schema": FUNCTION["parameters"]}]},
        lambda stop: {"stop_sequences": [stop]},
        seen_in_message,
    ),
    "ollama": (
        "/api/chat",
        {"messages": HI, "tools": TOOLS, "stream": False},
        lambda stop: {"options": {"stop": [stop]}},
        seen_by_ollama,
    ),
}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("stop", "content", "calls"),
    [
        ("STOP", "It is here. ", ["weather"]),
        ("<th", "It is here. ", ["weather"]),
        ("</think>", "It is here. ", ["weather"]),
        ("<tool_call>", "It is here. ", ["weather"]),
        ("weather", "It is here. ", ["weather"]),
        ('"', "It is here. ", ["weather"]),
        ("is", "It ", []),
        ("\n", "It is here. ", ["weather"]),
    ],
)
async def test_a_stop_string_ends_what_is_seen_alone(route, stop, content, calls):
    path, body, stopping, seen = ROUTES[route]
    service = service_of(f"{THOUGHT}It is here. {CALL}")
    response = await service.post(path, {"model": MODEL} | body | stopping(stop))
    assert response.status_code == 200, response.text
    assert seen(response.json()) == (content, "STOP or not?", calls)


@pytest.mark.parametrize("stream", [False, True])
async def test_the_log_probabilities_of_a_content_are_those_of_its_tokens(stream):
    for text, content in ((f"{THOUGHT}It is é🌍.", "It is é🌍."), (f"{THOUGHT}Hm.STOP x", "Hm."), (CALL, "")):
        service = service_of(text)
        response = await service.chat(logprobs=True, tools=TOOLS, stop="STOP", stream=stream)
        answers = events(response)[:-1] if stream else [response.json()]
        entries = [
            entry
            for answer in answers
            for choice in answer["choices"]
            for entry in (choice["logprobs"] or {"content": ()})["content"]
        ]
        assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == content


async def test_responses_and_ollama_have_the_same_log_probabilities():
    service = service_of(f"{THOUGHT}It is here.")
    body = {"model": MODEL, "input": "hi", "include": ["message.output_text.logprobs"]}
    answer = (await service.post("/v1/responses", body)).json()
    [message] = [item for item in answer["output"] if item["type"] == "message"]
    assert "".join(entry["token"] for entry in message["content"][0]["logprobs"]) == "It is here."
    body = {"model": MODEL, "messages": HI, "logprobs": True, "stream": False}
    answer = (await service.post("/api/chat", body)).json()
    assert "".join(entry["token"] for entry in answer["logprobs"]) == "It is here."


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["chat", "complete"])
async def test_token_ids_are_what_was_sampled_with_its_end(path, stream):
    service = service_of(f"{THOUGHT}Yes.")
    fields = {"return_token_ids": True, "logprobs": True if path == "chat" else 1, "max_tokens": 99}
    response = await getattr(service, path)(stream=stream, **fields)
    choices = [
        choice for answer in (events(response)[:-1] if stream else [response.json()]) for choice in answer["choices"]
    ]
    token_ids = [token_id for choice in choices for token_id in choice.get("token_ids") or ()]
    assert token_ids == [*tokens(f"{THOUGHT}Yes."), END]
    named = "content" if path == "chat" else "tokens"
    assert sum(len(choice["logprobs"][named]) for choice in choices if choice["logprobs"]) == len(token_ids)
    if stream:
        assert all(
            len(choice["logprobs"][named]) == len(choice["token_ids"]) for choice in choices if choice["logprobs"]
        )


@pytest.mark.parametrize("path", ["chat", "complete"])
async def test_min_tokens_holds_stop_strings_back(path):
    text = "One STOP two STOP three"
    for min_tokens, expected in ((0, "One "), (len(tokens("One STOP")) + 1, "One STOP two "), (50, text)):
        answer = (await getattr(service_of(text), path)(stop="STOP", min_tokens=min_tokens, max_tokens=99)).json()
        [choice] = answer["choices"]
        assert (choice.get("text") or choice["message"]["content"]) == expected


@pytest.mark.parametrize("stream", [False, True])
async def test_the_text_of_a_stop_token_is_kept_where_stops_are(stream):
    [last] = tokens("!")
    for fields, expected in (({}, "Yes"), ({"include_stop_str_in_output": True}, "Yes!")):
        for path in ("chat", "complete"):
            service = Service([*tokens("Yes"), StopToken(last)])
            response = await getattr(service, path)(stop_token_ids=[last], stream=stream, **fields)
            choices = [
                choice
                for answer in (events(response)[:-1] if stream else [response.json()])
                for choice in answer["choices"]
            ]
            texts = [choice.get("text") or (choice.get("message") or choice.get("delta") or {}).get("content") or ""
                     for choice in choices]  # fmt: skip
            assert "".join(texts) == expected
            assert choices[-1]["stop_reason"] == last


async def test_a_special_stop_token_is_text_only_where_special_tokens_are():
    for fields, expected in (({}, "Yes"), ({"skip_special_tokens": False}, "Yes<|end|>")):
        service = Service([*tokens("Yes"), FinishReason.STOP])
        answer = (await service.chat(include_stop_str_in_output=True, **fields)).json()
        assert answer["choices"][0]["message"]["content"] == expected


@pytest.mark.parametrize(
    ("stop", "keeps", "grammar", "text", "expected"),
    [
        ("}", False, {"json": {"type": "object"}}, '{"a": {}}', '{"a": {}}'),
        ('"', False, {"json": {"type": "object"}}, '{"a": {}}', '{"a": {}}'),
        ("}", True, {"json": {"type": "object"}}, '{"a": {}}', '{"a": {}}'),
        ("b", False, {"regex": "a+b?c*"}, "aabcc", "aa"),
        ("ab", False, {"regex": "a+b?c*"}, "aabcc", "a"),
        ("ab", False, {"regex": "aab?c*"}, "aabcc", "aabcc"),
        ("c", False, {"regex": "a+b?c*"}, "aabcc", "aab"),
        ("c", False, {"regex": "a+b?cc"}, "aabcc", "aabcc"),
        ("c", True, {"regex": "a+b?cc"}, "aabcc", "aabcc"),
        ("é", False, {"regex": ".*"}, "a🌍éb", "a🌍"),
    ],
)
async def test_a_stop_string_ends_no_text_where_its_grammar_does_not(stop, keeps, grammar, text, expected):
    fields = {"stop": stop, "include_stop_str_in_output": keeps, "structured_outputs": grammar}
    for path in ("chat", "complete"):
        answer = (await getattr(service_of(text), path)(max_tokens=99, **fields)).json()
        [choice] = answer["choices"]
        assert (choice.get("text") or choice["message"]["content"]) == expected


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("family", ["bytes", "metaspace"])
@pytest.mark.parametrize("echo", [False, True])
async def test_a_text_begins_with_each_token_at_its_offset(family, echo, stream):
    tokenizer = TOKENIZER if family == "bytes" else Tokenizer(metaspace(), special_tokens={"bos_token": "<s>"})
    script = tokenizer.encode("the 世 Hello 🌍 world", add_special_tokens=False)
    service = Service([*script, FinishReason.STOP], model={"tokenizer": tokenizer, "vocab_size": tokenizer.vocab_size})
    for prompt in ("Once é🌍 upon", "🌍 a", tokenizer.encode("the a", add_special_tokens=False)):
        response = await service.complete(prompt, echo=echo, logprobs=1, max_tokens=40, stream=stream)
        answers = events(response)[:-1] if stream else [response.json()]
        choices = [choice for answer in answers for choice in answer["choices"]]
        text = "".join(choice["text"] for choice in choices)
        parts = [choice["logprobs"] for choice in choices if choice["logprobs"]]
        names = [name for part in parts for name in part["tokens"]]
        offsets = [offset for part in parts for offset in part["text_offset"]]
        assert len(names) == len(script) + 1 + (len(service.engine.last.request.prompt_ids) if echo else 0)
        for name, offset in zip(names, offsets, strict=True):
            is_text = not name.startswith("bytes:") and name not in ("<s>", "</s>", "<|begin|>", "<|end|>")
            assert text.startswith(name, offset) or not is_text, (name, text[offset:])


class OneName(Tokenizer):
    """A tokenizer whose tokens are all written alike."""

    def __init__(self):
        super().__init__(byte_level(adds_begin=True))

    def token_bytes_of(self, token_id):
        return b"same"


def test_alternatives_with_one_name_are_all_there():
    logprobs = CompletionLogprobsParts(OneName(), 3, context_ids=(), as_ids=False, keeps_special=False)
    top = ((5, -0.5), (6, -1.0), (7, -1.5))
    for sampled, logprob, expected in ((6, -1.0, 3), (9, -4.0, 4)):
        [found] = logprobs.part([sampled], [TokenLogprobs(logprob, 2, top)])["top_logprobs"]
        assert list(found) == ["same", "token_id:6", "token_id:7", "token_id:9"][:expected]
        assert list(found.values()) == [-0.5, -1.0, -1.5, -4.0][:expected]


async def test_a_stream_says_the_same():
    service = service_of(f"{THOUGHT}It is STOP {CALL}")
    response = await service.chat(tools=TOOLS, stop="STOP", stream=True)
    deltas = [choice["delta"] for event in events(response)[:-1] for choice in event["choices"]]
    assert "".join(delta.get("content") or "" for delta in deltas) == "It is "
    assert not any("tool_calls" in delta for delta in deltas)
    assert json.dumps(deltas).count("role") == 1
