"""Templates that write messages and tools as a whole: they are the client's, key by key, on every route."""

import json

import pytest

from service.text.chat_template import ChatTemplate
from tests.api.scripted_engine import MODEL, TOKENIZER, Service

pytestmark = pytest.mark.anyio

WHOLE = "{{ messages | tojson }}{{ tools | tojson }}{{ documents | tojson }}"
PARAMETERS = {
    "required": ["x"],
    "type": "object",
    "additionalProperties": False,
    "properties": {"x": {"type": "integer", "description": "é"}},
}
ORDERED = {"name": "f", "description": "does", "parameters": PARAMETERS}
CALL = {"function": {"arguments": {"x": 1}, "name": "f"}, "type": "function", "index": 0, "id": "a"}
MESSAGES = [
    {"content": "Be brief.", "role": "system"},
    {"role": "user", "mark": {"b": [1, None], "a": 1.5}, "content": "hi", "name": "ann"},
    {"tool_calls": [CALL], "role": "assistant", "own": True, "refusal": None},
    {"content": "one", "tool_call_id": "a", "role": "tool", "name": "f"},
]
TOOL = {"function": {"strict": True, "parameters": PARAMETERS, "own": 1, "name": "f"}, "type": "function", "top": []}


def service_of(source=WHOLE, **variants):
    made = {name: ChatTemplate(variant, {}) for name, variant in variants.items()}
    return Service(model={"chat_template": ChatTemplate(source, {}, variants=made), "max_model_len": 4096})


async def prompts_of(service, body):
    """The prompt of a chat on each route that makes one."""
    answer = await service.post("/v1/chat/completions", body)
    assert answer.status_code == 200, answer.text
    yield service.engine.last.request.prompt_ids
    yield (await service.post("/tokenize", body)).json()["tokens"]
    yield (await service.post("/v1/chat/completions/render", body)).json()["token_ids"]


async def prompt_of(body, service=None):
    body = {"model": MODEL} | body
    service = service or service_of()
    prompts = {tuple(ids) async for ids in prompts_of(service, body)}
    assert len(prompts) == 1
    return TOKENIZER.backend.decode(list(prompts.pop()), skip_special_tokens=False)


def shown(messages, tools=None, documents=None):
    return "".join(json.dumps(value, ensure_ascii=False) for value in (messages, tools, documents))


@pytest.mark.parametrize("size", [1, 40_000])  # a long body is read in another process
async def test_a_template_gets_the_json_of_the_client(size):
    long = [*MESSAGES[:3], MESSAGES[3] | {"content": "1" * size}]
    called = [CALL | {"function": {"arguments": json.dumps(CALL["function"]["arguments"]), "name": "f"}}]
    for calls in ([CALL], called):
        sent = [long[0], long[1], long[2] | {"tool_calls": calls}, long[3]]
        service = service_of("{{ messages[:3] | tojson }}{{ messages[3:] | length }}{{ tools | tojson }}")
        expected = [long[0], long[1], {key: value for key, value in long[2].items() if value is not None}]
        assert await prompt_of({"messages": sent, "tools": [TOOL]}, service) == shown(expected, 1, [TOOL])


async def test_thinking_has_the_names_that_templates_read_as_in_transformers():
    hidden = {"role": "assistant", "reasoning": "hm", "content": "hi"}
    got = await prompt_of({"messages": [MESSAGES[0], hidden]})
    assert got == shown([MESSAGES[0], {"thinking": "hm", **hidden, "reasoning_content": "hm"}])


async def test_a_template_that_joins_arguments_gets_the_text_of_the_client():
    joins = "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments }}{% endfor %}{% endfor %}"
    for arguments, text in (('{"x":1,  "y": "é"}', '{"x":1,  "y": "é"}'), ({"y": "é", "x": 1}, '{"y": "é", "x": 1}')):
        call = CALL | {"function": {"name": "f", "arguments": arguments}}
        assert await prompt_of({"messages": [MESSAGES[0], {"role": "assistant", "tool_calls": [call]}]},
                               service_of(joins)) == text  # fmt: skip


async def test_parts_reach_a_template_that_reads_them_as_it_reads_texts():
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    body = {"messages": [{"role": "user", "content": parts}]}
    loop = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}" \
        "{{ p.text }}{% if not loop.last %}|{% endif %}{% endfor %}{% endif %}{% endfor %}"  # fmt: skip
    assert await prompt_of(body, service_of(loop)) == "a |b"
    assert await prompt_of(body, service_of("{{ messages[0].content }}")) == "a b"


async def test_the_named_template_of_a_chat_is_chosen_by_what_it_brings():
    variants = {"tool_use": "{{ tools | tojson }}", "rag": "rag {{ documents | tojson }}"}
    service = service_of("plain", **variants)
    body = {"messages": MESSAGES[:1]}
    assert await prompt_of(body, service) == "plain"
    assert await prompt_of(body | {"tools": [TOOL]}, service) == json.dumps([TOOL], ensure_ascii=False)
    assert await prompt_of(body | {"documents": [{"text": "a"}]}, service) == 'rag [{"text": "a"}]'
    assert await prompt_of(body | {"documents": [{"text": "a"}]}) == shown(MESSAGES[:1], documents=[{"text": "a"}])
    refusal = await service_of("plain").post("/v1/chat/completions", {"model": MODEL, **body, "documents": [{}]})
    assert (refusal.status_code, refusal.json()["error"]["param"]) == (400, "documents")


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/responses", {"input": "hi", "tools": [{"strict": True, **reversed_, "type": "function"}]})
        for reversed_ in [dict(reversed(ORDERED.items()))]
    ]
    + [
        (
            "/v1/messages",
            {
                "max_tokens": 9,
                "messages": [{"content": "hi", "role": "user"}],
                "tools": [{"input_schema": PARAMETERS, "description": "does", "name": "f"}],
            },
        ),
        (
            "/api/chat",
            {
                "messages": [{"content": "hi", "role": "user"}],
                "tools": [{"function": dict(reversed(ORDERED.items())), "type": "function"}],
            },
        ),
    ],
)
async def test_the_tools_of_other_dialects_have_the_order_of_openais_documents(path, fields):
    service = service_of()
    answer = await service.post(path, {"model": MODEL} | fields)
    assert answer.status_code == 200, answer.text
    prompt = TOKENIZER.backend.decode(service.engine.last.request.prompt_ids, skip_special_tokens=False)
    assert prompt == shown([{"role": "user", "content": "hi"}], [{"type": "function", "function": ORDERED}])
