"""Tools of responses besides functions: namespaces, free texts with and without a grammar, the local shell; and Codex.

Every answer and event is checked against the types of the official client.
"""

import json
import random

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from service.engine.request import FinishReason
from service.text.chat_template import ChatTemplate
from tests.api.scripted_engine import MODEL, TOKENIZER, Service, tokens
from tests.api.test_structured import text_of

pytestmark = pytest.mark.anyio

# Everything that a request says is rendered, so that equal prompts mean equal requests.
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}{% for m in messages %}{{ '\\n' + m.role }}:"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "{% endfor %}{{ '\\nassistant:' }}"
)
HEADER = "x-levserve-ignored"
EVENT = TypeAdapter(ResponseStreamEvent)
CLOSE = {
    "type": "function",
    "name": "close_agent",
    "description": "Close an agent.",
    "strict": False,
    "parameters": {
        "type": "object",
        "properties": {"target": {"type": "string"}},
        "required": ["target"],
        "additionalProperties": False,
    },
}
AGENTS = {"type": "namespace", "name": "multi_agent_v1", "description": "Sub-agents.", "tools": [CLOSE]}
PATCH_GRAMMAR = """
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?
hunk: add_hunk | delete_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
%import common.LF
"""
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edit files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": PATCH_GRAMMAR},
}
FREE = {"type": "custom", "name": "note", "description": "Take a note."}
SHELL = {"type": "local_shell"}
SEARCH = {"type": "web_search", "external_web_access": False}
PATCH_TEXT = '*** Begin Patch\n*** Add File: a.py\n+print("é 🌍\\n")\n+\tx\n*** End Patch\n'


def call(name, arguments):
    written = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{written}\n</tool_call>"


def service_of(text, *, reason=FinishReason.STOP, **model):
    template = ChatTemplate(TEMPLATE, TOKENIZER.special_tokens)
    return Service([*tokens(text), reason], model={"chat_template": template, "max_model_len": 65536} | model)


async def answer_of(service, **fields):
    answer = await service.post("/v1/responses", {"model": MODEL, "input": "hi"} | fields)
    assert answer.status_code == 200, answer.text
    Response.model_validate(answer.json())
    return answer.json()


async def events_of(service, **fields):
    answer = await service.post("/v1/responses", {"model": MODEL, "input": "hi", "stream": True} | fields)
    assert answer.status_code == 200, answer.text
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    for event in events:
        EVENT.validate_python(event)
    return events


async def refusal(service=None, **fields):
    answer = await (service or service_of("x")).post("/v1/responses", {"model": MODEL, "input": "hi"} | fields)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


async def ignored_of(**fields):
    answer = await service_of("Hello").post("/v1/responses", {"model": MODEL, "input": "hi"} | fields)
    assert answer.status_code == 200, answer.text
    return answer.headers.get(HEADER)


def prompt_of(service):
    return TOKENIZER.decode(service.engine.last.request.prompt_ids)


async def both(text, **fields):
    """Return the one item of an answer, which a stream builds in the same way, and the stream's events."""
    [item] = (await answer_of(service_of(text), **fields))["output"]
    events = await events_of(service_of(text), **fields)
    done = events[-2]
    assert done["type"] == "response.output_item.done"
    assert events[-1]["response"]["output"] == [done["item"]]
    assert without_ids(done["item"]) == without_ids(item)
    return item, events


def without_ids(item):
    return {name: value for name, value in item.items() if name not in ("id", "call_id")}


async def test_a_function_of_a_namespace_is_shown_with_its_name_and_called_by_both():
    service = service_of(call("multi_agent_v1.close_agent", {"target": "a"}))
    await answer_of(service, tools=[AGENTS])
    prompt = prompt_of(service)
    assert '"name": "multi_agent_v1.close_agent"' in prompt
    assert "Sub-agents.\\n\\nClose an agent." in prompt
    item, events = await both(call("multi_agent_v1.close_agent", {"target": "a"}), tools=[AGENTS])
    assert without_ids(item) == {
        "type": "function_call", "status": "completed", "namespace": "multi_agent_v1", "name": "close_agent",
        "arguments": '{"target": "a"}',
    }  # fmt: skip
    added = next(event for event in events if event["type"] == "response.output_item.added")
    assert (added["item"]["namespace"], added["item"]["name"]) == ("multi_agent_v1", "close_agent")


async def test_a_call_of_a_namespace_that_comes_back_is_the_one_that_was_made():
    items = [
        {"role": "user", "content": "Close a."},
        {"type": "function_call", "call_id": "c", "namespace": "multi_agent_v1", "name": "close_agent",
         "arguments": '{"target":"a"}', "status": "completed", "id": "fc_1"},
        {"type": "function_call_output", "id": "fco_1", "call_id": "c", "output": "closed"},
    ]  # fmt: skip
    service = service_of("Done.")
    await answer_of(service, tools=[AGENTS], input=items)
    assert '"name": "multi_agent_v1.close_agent", "arguments": {"target": "a"}' in prompt_of(service)


async def test_a_custom_tool_gets_its_text_as_it_is_whole_and_in_pieces():
    written = call("note", {"input": PATCH_TEXT})
    item, events = await both(written, tools=[FREE])
    assert without_ids(item) == {
        "type": "custom_tool_call", "status": "completed", "name": "note", "input": PATCH_TEXT,
    }  # fmt: skip
    deltas = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == PATCH_TEXT
    assert len(deltas) > 10
    [done] = [event for event in events if event["type"] == "response.custom_tool_call_input.done"]
    assert done["input"] == PATCH_TEXT


async def test_the_grammar_of_a_custom_tool_holds_its_text_and_is_shown():
    service = service_of(call("apply_patch", {"input": PATCH_TEXT}))
    answer = await answer_of(service, tools=[PATCH], tool_choice={"type": "custom", "name": "apply_patch"})
    assert answer["output"][0]["input"] == PATCH_TEXT
    assert answer["tools"] == [PATCH]
    assert answer["tool_choice"] == {"type": "custom", "name": "apply_patch"}
    assert "begin_patch" in prompt_of(service)
    constraint = constraint_of(service)
    for token_id in tokens(call("apply_patch", {"input": PATCH_TEXT})):
        constraint.accept(token_id)
    await answer_of(service, tools=[PATCH], tool_choice="required")
    text = text_of(constraint_of(service), random.Random(1))
    arguments = json.loads(text.partition('"arguments": ')[2].rpartition("}")[0])
    assert arguments["input"].startswith("*** Begin Patch\n*** ")


def constraint_of(service):
    return service.engine.last.request.constraint


async def test_a_pattern_of_a_custom_tool_holds_its_text():
    digits = FREE | {"format": {"type": "grammar", "syntax": "regex", "definition": "[0-9]{3}|none"}}
    service = service_of("x")
    await answer_of(service, tools=[digits], tool_choice="required")
    text = text_of(constraint_of(service), random.Random(1))
    arguments = json.loads(text.partition('"arguments": ')[2].rpartition("}")[0])
    assert arguments["input"] == "none" or (len(arguments["input"]) == 3 and arguments["input"].isdecimal())


UNENFORCEABLE = [
    ("lark", 'start: "(" start ")" | "a"'),
    ("lark", '%ignore " "\nstart: "a"'),
    ("regex", "(?=a)a"),
]


@pytest.mark.parametrize(("syntax", "definition"), UNENFORCEABLE)
async def test_a_grammar_that_cannot_be_enforced_is_told_or_refused_if_a_call_is_required(syntax, definition):
    tool = FREE | {"format": {"type": "grammar", "syntax": syntax, "definition": definition}}
    assert await ignored_of(tools=[CLOSE, tool]) == "tools[].format.definition"
    for choice in ("required", {"type": "custom", "name": "note"}):
        assert (await refusal(tools=[CLOSE, tool], tool_choice=choice))["param"] == "tools[1].format.definition"


async def test_a_call_that_is_cut_has_the_text_so_far():
    text = call("note", {"input": "ab\ncd"}).partition("\\n")[0] + "\\"
    answer = await answer_of(service_of(text, reason=FinishReason.LENGTH), tools=[FREE])
    [item] = answer["output"]
    assert (answer["status"], item["status"], item["input"]) == ("incomplete", "incomplete", "ab")


async def test_the_local_shell_is_called_with_a_command():
    arguments = {"command": ["ls", "-l"], "timeout_ms": 100}
    item, _ = await both(call("local_shell", arguments), tools=[SHELL])
    assert without_ids(item) == {
        "type": "local_shell_call", "status": "completed", "action": {"type": "exec", "env": {}} | arguments,
    }  # fmt: skip
    cut = service_of(call("local_shell", arguments)[:60], reason=FinishReason.LENGTH)
    [item] = (await answer_of(cut, tools=[SHELL]))["output"]
    assert (item["status"], item["action"]["command"]) == ("incomplete", [])


async def test_calls_of_any_tool_come_back_with_their_results():
    tools = [CLOSE, FREE, SHELL]
    written = [
        call("close_agent", {"target": "a"}),
        call("note", {"input": "x\n"}),
        call("local_shell", {"command": ["ls"], "env": {}}),
    ]
    output = (await answer_of(service_of("\n".join(written)), tools=tools))["output"]
    assert [item["type"] for item in output] == ["function_call", "custom_tool_call", "local_shell_call"]
    of_shell = output[2]["call_id"]
    for shell_result in ({"call_id": of_shell}, {"id": of_shell}, {"id": output[2]["id"]}):
        results = [
            {"type": "function_call_output", "call_id": output[0]["call_id"], "output": "r1"},
            {"type": "custom_tool_call_output", "call_id": output[1]["call_id"],
             "output": [{"type": "input_text", "text": "r2"}]},
            {"type": "local_shell_call_output", "output": "r3", **shell_result},
        ]  # fmt: skip
        service = service_of("Done.")
        await answer_of(service, tools=tools, input=[{"role": "user", "content": "Go."}, *output, *results])
        prompt = prompt_of(service)
        calls = [
            '"name": "note", "arguments": {"input": "x\\n"}', '"name": "local_shell", "arguments": {"command": ["ls"]',
        ]  # fmt: skip
        assert all(text in prompt for text in (*calls, "tool:r1", "tool:r2", "tool:r3"))


HOSTED = {
    "web_search": {"search_context_size": "low"},
    "web_search_preview": {"user_location": {"type": "approximate"}},
    "file_search": {"vector_store_ids": ["vs_1"]},
    "code_interpreter": {"container": {"type": "auto"}},
    "computer_use_preview": {"display_width": 1, "display_height": 1, "environment": "linux"},
    "mcp": {"server_label": "a", "server_url": "http://a", "require_approval": "never"},
    "image_generation": {"quality": "low"},
    "tool_search": {},
    "shell": {},
    "apply_patch": {},
    "a_tool_of_tomorrow": {"with": {"any": "field"}},
}


@pytest.mark.parametrize("kind", HOSTED)
async def test_a_tool_that_openai_runs_is_left_out_and_told(kind):
    tool = {"type": kind, **HOSTED[kind]}
    assert await ignored_of(tools=[CLOSE, tool]) == "tools[]"
    service = service_of("Hello")
    answer = await answer_of(service, tools=[tool, CLOSE])
    assert answer["tools"] == [CLOSE]
    assert kind not in prompt_of(service)
    assert (await refusal(tools=[CLOSE, tool], tool_choice={"type": kind}))["param"] == "tool_choice.type"
    among = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": kind}]}
    assert (await refusal(tools=[CLOSE, tool], tool_choice=among))["param"] == "tool_choice.tools[0].type"


async def test_strict_fields_refuse_a_tool_that_would_be_left_out():
    service = Service(strict_fields=True)
    assert (await refusal(service, tools=[CLOSE, SEARCH]))["param"] == "tools[1]"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "custom"}]}, "tools[0].name"),
        ({"tools": [{"type": "namespace", "name": "a"}]}, "tools[0].tools"),
        ({"tools": [SEARCH, {"type": "namespace", "name": "a", "tools": [{"type": "function"}]}]},
         "tools[1].tools[0].name"),
        ({"tools": [PATCH | {"format": {"type": "grammar", "syntax": "lark"}}]}, "tools[0].format.definition"),
        ({"tools": [PATCH | {"format": {"type": "grammar", "syntax": "yacc"}}]}, "tools[0].format.syntax"),
        ({"tools": [SEARCH, FREE, FREE]}, "tools[2].name"),
        ({"tools": [SEARCH], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [FREE], "tool_choice": {"type": "custom", "name": "other"}}, "tool_choice.name"),
        ({"tools": [FREE], "tool_choice": {"type": "custom"}}, "tool_choice.name"),
        ({"tools": [FREE], "tool_choice": {"type": "local_shell"}}, "tool_choice.name"),
        ({"tools": [SEARCH, AGENTS | {"tools": [CLOSE | {"parameters": {"type": "object", "not": {}}}]}],
          "tool_choice": "required"}, "tools[1].tools[0].parameters.not"),
    ],
)  # fmt: skip
async def test_what_a_tool_lacks_is_named_where_the_request_has_it(fields, param):
    error = await refusal(**fields)
    assert error["param"] == param
    assert "function" not in param


CODEX_TOOLS = [
    {
        "type": "function",
        "name": "exec_command",
        "description": "Runs a command.",
        "strict": False,
        "parameters": {
            "type": "object",
            "properties": {"cmd": {"type": "string"}, "yield_time_ms": {"type": "number"}},
            "required": ["cmd"],
            "additionalProperties": False,
        },
    },
    AGENTS,
    PATCH,
    SEARCH,
]


def codex_request(*items):
    """A request as Codex 0.169 sends it."""

    def message(role, text):
        return {"type": "message", "id": f"msg_{role}", "role": role, "content": [{"type": "input_text", "text": text}]}

    return {
        "model": MODEL,
        "stream": True,
        "input": [
            message("developer", "You are a coding agent."),
            message("developer", "<skills_instructions>none</skills_instructions>"),
            message("user", "<environment_context><cwd>/work</cwd></environment_context>"),
            message("user", "Say hello."),
            *items,
        ],
        "tools": CODEX_TOOLS,
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "01a20dc3-b49a-73f1-a1fe-35ba13ddbfb2",
        "client_metadata": {"session": "a"},
        "text": {"verbosity": "low"},
    }


async def test_codex_gets_its_turn_and_the_next_one_goes_on_with_the_same_prompt():
    service = service_of("<think>\nHm.\n</think>\n\n" + call("exec_command", {"cmd": "echo hello"}))
    answer = await service.post("/v1/responses", codex_request())
    assert answer.status_code == 200, answer.text
    assert answer.headers[HEADER] == "tools[], reasoning.summary, text.verbosity, reasoning.effort"
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [item["type"] for item in done] == ["reasoning", "function_call"]
    assert done[0]["encrypted_content"]
    assert events[0]["type"] == "response.created"
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["usage"]["total_tokens"] > 0
    first = prompt_of(service)
    thought = {"type": "reasoning", "id": done[0]["id"], "summary": [], "content": None}
    thought["encrypted_content"] = done[0]["encrypted_content"]
    output = {"type": "function_call_output", "id": "fco_1", "call_id": done[1]["call_id"], "output": "hello\n"}
    service = service_of("Hello.")
    answer = await service.post("/v1/responses", codex_request(thought, done[1], output))
    assert answer.status_code == 200, answer.text
    second = prompt_of(service)
    assert second.startswith(first)
    assert "<think>Hm.</think>" in second
    assert "tool:hello" in second
