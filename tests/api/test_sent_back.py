"""Whatever this service answers, and whatever other services have answered, it takes back as history, on every route.

The answers are cut at random tokens, by limits and by stop strings. Each is sent back by every way that a client has,
and makes the same prompt by each of them.
"""

import json
import random

import pytest

from service.api.memory.store import ResponseStore
from service.api.open_calls import OpenCalls
from service.engine.request import FinishReason
from service.storage.folder_store import FolderStore
from service.text.chat_template import ChatTemplate
from tests.api.scripted_engine import MODEL, TOKENIZER, Service, tokens

pytestmark = pytest.mark.anyio

HEAD = """
{%- for tool in tools or [] %}{{ tool | tojson }}<tool_call>{% endfor -%}
{%- for message in messages -%}
    [{{- message.role }}
    {%- if message.role == 'tool' %} {{ message.name }}{% endif %}]
    {%- if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif -%}
    {{- message.content or "" -}}
    {%- for call in message.tool_calls or [] -%}
        {{- call.function.name }}
"""
TAIL = "{%- endfor -%}{%- endfor -%}"
# As templates write arguments: as JSON, as they are if they are a text, or one by one.
TEMPLATES = {
    "json": HEAD + "{{ call.function.arguments | tojson }}" + TAIL,
    "text": HEAD
    + "{%- set a = call.function.arguments %}{{ a if a is string else a | tojson }}{% if false %}<x>{% endif %}"
    + TAIL,
    "items": HEAD + "{% for name, value in call.function.arguments|items %}{{ name }}={{ value }};{% endfor %}" + TAIL,
    "joined": (HEAD + "{{ '' + call.function.arguments }}" + TAIL).replace("{{ tool | tojson }}", "{{ tool }}"),
}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "weather", "description": "Now.", "parameters": SCHEMA}
OTHER = FUNCTION | {"name": "time.now"}
QUESTION = {"role": "user", "content": "How is it in Ulm?"}
NEXT = {"role": "user", "content": "And then?"}
CHAT_TOOLS = [{"type": "function", "function": function} for function in (FUNCTION, OTHER)]
FLAT_TOOLS = [{"type": "function", **function} for function in (FUNCTION, OTHER)]
MESSAGE_TOOLS = [{"name": f["name"], "description": f["description"], "input_schema": SCHEMA} for f in (FUNCTION,)]
RESULT = "warm"


def template_of(name):
    return ChatTemplate(TEMPLATES[name], TOKENIZER.special_tokens)


def random_answer(rng):
    """Return a whole answer: thinking, text and calls, each of which may be missing."""
    words = ["Ulm", '"', "é", "\u2028", "\\", "{", "</think", "<tool_call", "a", "\n", "0"]
    text = "".join(rng.choices(words, k=rng.randrange(8)))
    thought = f"<think>\n{''.join(rng.choices(words[:6], k=4))}\n</think>\n\n" if rng.random() < 0.5 else ""
    calls = [
        f'<tool_call>\n{{"name": "{rng.choice([FUNCTION, OTHER])["name"]}", "arguments": '
        f"{json.dumps({'city': text, 'n': [1, {'a': None}]}, ensure_ascii=rng.random() < 0.5)}}}\n</tool_call>"
        for _ in range(rng.choice([0, 1, 2]))
    ]
    return thought + rng.choice(["", text]) + "\n".join(calls)


def service_of(rng, template, **settings):
    ids = tokens(random_answer(rng))
    is_cut = rng.random() < 0.7
    script: list[object] = [*(ids[: rng.randrange(1, len(ids) + 1)] if is_cut and ids else ids)]
    script.append(FinishReason.LENGTH if is_cut and rng.random() < 0.8 else FinishReason.STOP)
    return Service(script, model={"chat_template": template, "max_model_len": 8192}, **settings)


async def prompt_after(service, path, body):
    response = await service.post(path, {"model": MODEL} | body)
    assert response.status_code == 200, (path, response.text, body)
    return service.engine.last.request.prompt_ids


async def answer_of(service, path, body):
    response = await service.post(path, {"model": MODEL} | body)
    assert response.status_code == 200, response.text
    return response.json()


def results_of(calls, make):
    return [make(call) for call in calls]


async def chat_prompts(service, fields):
    """Return the prompts that a chat's answer makes as history."""
    body = {"messages": [QUESTION], "tools": CHAT_TOOLS} | fields
    message = (await answer_of(service, "/v1/chat/completions", body))["choices"][0]["message"]
    results = results_of(
        message.get("tool_calls") or (),
        lambda call: {"role": "tool", "tool_call_id": call["id"], "content": RESULT},
    )
    history = [QUESTION, message, *results, NEXT]
    typed = {"name": "", "tool_call_id": "", "refusal": "", "function_call": {"name": "", "arguments": ""}} | {
        name: value for name, value in message.items() if value is not None
    }
    ids = {call["id"]: "same" for call in message.get("tool_calls") or ()}
    renamed = json.loads(json.dumps([message, *results]).replace("\u2028", "\\u2028"))
    for turn in renamed:
        if "tool_call_id" in turn:
            turn["tool_call_id"] = ids[turn["tool_call_id"]]
        for call in turn.get("tool_calls") or ():
            call["id"] = ids[call["id"]]
    for messages in (history, [QUESTION, typed, *results, NEXT], [QUESTION, *renamed, NEXT]):
        yield await prompt_after(service, "/v1/chat/completions", body | {"messages": messages})


async def response_prompts(service, fields):
    """Return the prompts that a response makes as input, and as the one before."""
    body = {"input": [QUESTION], "tools": FLAT_TOOLS, "include": ["reasoning.encrypted_content"]} | fields
    response = await answer_of(service, "/v1/responses", body)
    output = response["output"]
    results = results_of(
        [item for item in output if item["type"] == "function_call"],
        lambda item: {"type": "function_call_output", "call_id": item["call_id"], "output": RESULT},
    )
    yield await prompt_after(service, "/v1/responses", body | {"input": [QUESTION, *output, *results, NEXT]})
    continued = {"input": [*results, NEXT], "previous_response_id": response["id"]}
    yield await prompt_after(service, "/v1/responses", body | continued)


async def message_prompts(service, fields):
    """Return the prompts that a message makes as history."""
    body = {"messages": [QUESTION], "tools": MESSAGE_TOOLS, "max_tokens": 4096} | fields
    content = (await answer_of(service, "/v1/messages", body))["content"]
    results = results_of(
        [block for block in content if block["type"] == "tool_use"],
        lambda block: {"type": "tool_result", "tool_use_id": block["id"], "content": RESULT},
    )
    answer = {"role": "assistant", "content": content}
    history = [QUESTION, answer, {"role": "user", "content": [*results, {"type": "text", "text": NEXT["content"]}]}]
    yield await prompt_after(service, "/v1/messages", body | {"messages": history})
    apart = [QUESTION, answer, *([{"role": "user", "content": results}] if results else []), NEXT]
    yield await prompt_after(service, "/v1/messages", body | {"messages": apart})


async def ollama_prompts(service, fields):
    """Return the prompts that an answer of Ollama's route makes as history."""
    body = {"messages": [QUESTION], "tools": CHAT_TOOLS, "stream": False} | fields
    message = (await answer_of(service, "/api/chat", body))["message"]
    results = results_of(
        message.get("tool_calls") or (),
        lambda call: {"role": "tool", "tool_name": call["function"]["name"], "content": RESULT},
    )
    yield await prompt_after(service, "/api/chat", body | {"messages": [QUESTION, message, *results, NEXT]})
    by_id = results_of(
        message.get("tool_calls") or (),
        lambda call: {"role": "tool", "tool_call_id": call["id"], "content": RESULT},
    )
    yield await prompt_after(service, "/api/chat", body | {"messages": [QUESTION, message, *by_id, NEXT]})


WAYS = {"chat": chat_prompts, "responses": response_prompts, "messages": message_prompts, "ollama": ollama_prompts}


async def check(way, seeds, folder):
    templates = {name: template_of(name) for name in TEMPLATES}
    store = ResponseStore(
        FolderStore(folder / "responses"), lifetime_s=3600.0, max_bytes=10**8, max_conversation_bytes=10**6
    )
    for seed in seeds:
        rng = random.Random(f"{way} {seed}")
        service = service_of(rng, templates[rng.choice(list(TEMPLATES))], responses=store)
        fields = {}
        if rng.random() < 0.3:
            stop = rng.choice(["U", "</", "{", "weather", "\n", "é"])
            fields = {"stop_sequences": [stop]} if way == "messages" else {"stop": [stop]}
            fields = {"options": fields} if way == "ollama" else fields
        prompts = [prompt async for prompt in WAYS[way](service, fields)]
        assert len(set(prompts)) == 1, (seed, [TOKENIZER.decode(prompt) for prompt in prompts])


@pytest.mark.parametrize("way", WAYS)
async def test_an_answer_that_was_cut_anywhere_is_taken_back(way, tmp_path):
    await check(way, range(5), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
async def test_2000_answers_that_were_cut_anywhere_are_taken_back(way, tmp_path):
    await check(way, range(1000, 3000), tmp_path)


def test_a_result_belongs_to_the_nearest_open_call_of_its_id():
    calls = OpenCalls()
    calls.add(0, "a", "one")
    calls.add(0, "a", "two")
    calls.add(2, "a", "three")
    calls.add(2, None, "four")
    calls.add(2, None, "five")
    asked = [("a", None), ("a", None), ("a", None), ("a", None), (None, "five"), (None, None), (None, None), ("b", "c")]
    found = [calls.answer(*of) for of in asked]
    assert [call and call.name for call in found] == ["three", "one", "two", "three", "five", "four", None, None]
    calls.add(3, None, "six")
    assert [calls.answer("unknown"), calls.answer("unknown")] == [("call00006", "six"), None]
    assert calls.answer("call00005") == ("call00005", "five")


def test_10000_calls_of_one_id_take_time_in_proportion():
    calls = OpenCalls()
    for number in range(10_000):
        calls.add(number, "a", f"f{number}")
    assert [calls.answer("a") for _ in range(10_000)][-1] == ("a", "f0")
    assert calls.answer("a") == ("a", "f9999")


ROLES = ChatTemplate(
    "{% for m in messages %}{% if m.role == 'critic' %}<critic>{{ m.content }}{% elif m.role == 'judge' %}"
    "{{ raise_exception('No judges.') }}{% elif m.role in ['user', 'assistant'] %}[{{ m.role }}]{{ m.content }}"
    "{% endif %}{% endfor %}",
    TOKENIZER.special_tokens,
)


@pytest.mark.parametrize(
    ("path", "field"),
    [("/v1/chat/completions", "messages"), ("/v1/responses", "input"), ("/v1/messages", "messages"),
     ("/api/chat", "messages")],
)  # fmt: skip
async def test_a_role_of_a_fine_tune_is_taken_where_its_template_writes_it(path, field):
    service = Service(model={"chat_template": ROLES})
    for role, says in (("critic", ""), ("judge", "No judges."), ("poet", "role 'poet'")):
        body = {"model": MODEL, field: [QUESTION, {"role": role, "content": "Hm."}, NEXT]}
        if path == "/v1/messages":
            body["max_tokens"] = 9
        response = await service.post(path, body)
        assert response.status_code == (400 if says else 200), response.text
        assert says in response.text
    assert "<critic>Hm." in TOKENIZER.decode(service.engine.last.request.prompt_ids)


async def test_a_template_that_drops_results_says_so():
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        QUESTION,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "7"},
    ]
    response = await Service(model={"chat_template": ROLES}).chat(messages=messages)
    assert (response.status_code, response.json()["error"]["param"]) == (400, "messages[2].role")


def made(**call):
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def asked(arguments, name="weather"):
    return {"name": name, "arguments": arguments}


# Histories of other services and of clients with types, and what the prompt has of each.
HISTORIES = {
    "no JSON": ([made(id="a", function=asked("not JSON"))], "weathernot JSON"),
    "cut": ([made(id="a", function=asked('{"city": "Ul'))], 'weather{"city": "Ul'),
    "null": ([made(id="a", function=asked(None))], "weather{}"),
    "absent": ([made(id="a", function={"name": "weather"})], "weather{}"),
    "a list": ([made(id="a", function=asked([1]))], "weather[1]"),
    "a list as text": ([made(id="a", function=asked("[1]"))], "weather[1]"),
    "an object": ([made(id="a", function=asked({"a": 1}))], 'weather{"a": 1}'),
    "empty ids": (
        [made(id="", type="", function=asked("{}")), {"role": "tool", "tool_call_id": "", "content": "7"}],
        "[tool weather]7",
    ),
    "an id that occurs twice": (
        [
            made(id="a", function=asked("{}", "one")),
            {"role": "tool", "tool_call_id": "a", "content": "1"},
            made(id="a", function=asked("{}", "two")),
            {"role": "tool", "tool_call_id": "a", "content": "2"},
        ],
        "[tool one]1[assistant]two{}[tool two]2",
    ),
    "a custom tool": (
        [made(id="a", type="custom", custom={"name": "shell", "input": "ls"})], 'shell{"input": "ls"}'
    ),
    "thinking as a part": (
        [{"role": "assistant", "content": [
            {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}, {"type": "text", "text": "Yes."}]}],
        "<think>Hm.</think>Yes.",
    ),
    "thinking twice": (
        [{"role": "assistant", "content": "Yes.", "reasoning": "Hm.", "reasoning_content": "Oh."}],
        "<think>Hm.</think>Yes.",
    ),
    "empty thinking": (
        [{"role": "assistant", "content": "Yes.", "reasoning": "", "reasoning_content": "Oh."}],
        "<think>Oh.</think>Yes.",
    ),
    "an image in a result": (
        [
            made(id="a", function=asked("{}")),
            {"role": "tool", "tool_call_id": "a", "content": [
                {"type": "text", "text": "7"}, {"type": "image_url", "image_url": {"url": "data:,AA"}}]},
        ],
        "[tool weather]7",
    ),
    "empty fields": (
        [{"role": "assistant", "content": "Yes.", "name": "", "tool_calls": [], "tool_call_id": "", "refusal": "",
          "reasoning_content": "", "function_call": {"name": "", "arguments": ""}, "audio": None}],
        "[assistant]Yes.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HISTORIES)
async def test_a_history_is_whatever_came(name):
    messages, expected = HISTORIES[name]
    service = Service(model={"chat_template": template_of("text"), "max_model_len": 1024})
    response = await service.chat(messages=[QUESTION, *messages, NEXT])
    assert response.status_code == 200, response.text
    assert expected in TOKENIZER.decode(service.engine.last.request.prompt_ids)


async def test_ids_that_mistrals_templates_refuse_are_shortened():
    template = ChatTemplate(
        "{{ tools }}[TOOL_CALLS]{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.id }};{% endfor %}"
        "{% if m.role == 'tool' %}{{ m.tool_call_id }}={{ m.content }};{% endif %}{% endfor %}",
        TOKENIZER.special_tokens,
    )
    service = Service(model={"chat_template": template, "max_model_len": 1024})
    messages = [made(id="call_1234567890", function=asked("{}"))]
    messages.append({"role": "tool", "tool_call_id": "call_1234567890", "content": "7"})
    assert (await service.chat(messages=[QUESTION, *messages])).status_code == 200
    call, result = TOKENIZER.decode(service.engine.last.request.prompt_ids).partition("[TOOL_CALLS]")[2].split(";")[:2]
    assert result == f"{call}=7"
    assert (len(call), call.isalnum()) == (9, True)


CUSTOM = '<tool_call>\n{"name": "patch", "arguments": {"input": "a \\"b\\" \\u00e9"}}\n</tool_call>'
SHELL = '<tool_call>\n{"name": "local_shell", "arguments": {"command": ["ls"], "env": {}}}\n</tool_call>'


@pytest.mark.parametrize(
    ("text", "tool"), [(CUSTOM, {"type": "custom", "name": "patch"}), (SHELL, {"type": "local_shell"})]
)
async def test_calls_of_other_tools_are_taken_back_wherever_they_were_cut(text, tool, tmp_path):
    store = ResponseStore(FolderStore(tmp_path), lifetime_s=3600.0, max_bytes=10**8, max_conversation_bytes=10**6)
    ids = tokens(text)
    for size in range(1, len(ids) + 1, 9):
        script = [*ids[:size], FinishReason.LENGTH]
        model = {"chat_template": template_of("text"), "max_model_len": 8192}
        service = Service(script, model=model, responses=store)
        body = {"input": [QUESTION], "tools": [tool]}
        response = await answer_of(service, "/v1/responses", body)
        output = response["output"]
        results = [
            {"type": item["type"] + "_output", "call_id": item["call_id"], "output": RESULT}
            for item in output
            if item["type"].endswith("_call")
        ]
        sent = await prompt_after(service, "/v1/responses", body | {"input": [QUESTION, *output, *results, NEXT]})
        continued = {"input": [*results, NEXT], "previous_response_id": response["id"]}
        assert await prompt_after(service, "/v1/responses", body | continued) == sent


async def test_calls_of_functions_are_taken_back_wherever_they_were_cut():
    call = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>'
    ids = tokens(call)
    for size in range(1, len(ids) + 1, 9):
        model = {"chat_template": template_of("items"), "max_model_len": 8192}
        service = Service([*ids[:size], FinishReason.LENGTH], model=model)
        body = {"messages": [QUESTION], "functions": [FUNCTION]}
        message = (await answer_of(service, "/v1/chat/completions", body))["choices"][0]["message"]
        result = {"role": "function", "name": "weather", "content": RESULT}
        results = [result] if message.get("function_call") else []
        await prompt_after(service, "/v1/chat/completions", body | {"messages": [QUESTION, message, *results, NEXT]})
