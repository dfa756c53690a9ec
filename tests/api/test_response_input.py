"""What clients send as the input of a response: items of earlier answers in every shape, thinking above all."""

import json

import pytest
from openai import AsyncOpenAI

from service.api.generation.sealed import seal
from service.api.http.keys import OPEN_OWNER
from service.engine.request import FinishReason
from service.text.chat_template import ChatTemplate
from tests.api.scripted_engine import MODEL, TOKENIZER, Service, tokens
from tests.api.test_response_tools import (
    AGENTS,
    CLOSE,
    FREE,
    HEADER,
    TEMPLATE,
    answer_of,
    call,
    ignored_of,
    prompt_of,
    refusal,
    service_of,
)

pytestmark = pytest.mark.anyio

OPEN = OPEN_OWNER.encode()
USER = {"role": "user", "content": "Go."}
SEALED = ["reasoning.encrypted_content"]
ANSWER = "<think>\nHm. 🌍\n</think>\n\nWait.\n" + "\n".join(
    [
        call("close_agent", {"target": "a"}),
        call("multi_agent_v1.close_agent", {"target": "b"}),
        call("note", {"input": "c\n"}),
    ]
)
TOOLS = [CLOSE, AGENTS, FREE]
THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": []}
TEXT = {"type": "reasoning_text", "text": "Hm."}
REPLY = {"type": "message", "role": "assistant", "content": "Yes."}
ITEM = {"role": "user", "content": "And?"}


async def prompt_with(*items, **fields):
    service = service_of("x")
    await answer_of(service, input=[USER, *items], **fields)
    return prompt_of(service)


def results_of(output):
    kinds = {"function_call": "function_call_output", "custom_tool_call": "custom_tool_call_output"}
    return [
        {"type": kinds[item["type"]], "call_id": item["call_id"], "output": "done"}
        for item in output
        if item["type"] in kinds
    ]


async def test_an_answer_fed_back_in_the_shapes_of_the_official_client_makes_one_prompt():
    """As objects, as `model_dump()` with its nulls, and as a stream's last items."""
    service = service_of(ANSWER)
    api = AsyncOpenAI(api_key="none", base_url="http://test/v1", http_client=service.client(), max_retries=0)
    fields = {"model": MODEL, "input": "Go.", "tools": TOOLS, "include": SEALED}
    response = await api.responses.create(**fields)
    stream = await api.responses.create(**fields, stream=True)
    streamed = [event.item async for event in stream if event.type == "response.output_item.done"]
    assert [item.type for item in response.output] == [item.type for item in streamed] == [
        "reasoning", "message", "function_call", "function_call", "custom_tool_call",
    ]  # fmt: skip
    prompts = set()
    for output in (response.output, streamed):
        shapes = [
            list(output),
            [item.model_dump() for item in output],
            [item.model_dump(exclude_none=True) for item in output],
            [item.model_dump(mode="json", by_alias=True) for item in output],
            [item.to_dict() for item in output],
        ]
        for shape in shapes:
            results = results_of([item.to_dict() for item in output])
            await api.responses.create(**fields | {"input": [USER, *shape, *results]})
            prompts.add(without_call_ids(prompt_of(service), output))
    [prompt] = prompts
    assert "<think>Hm. 🌍</think>Wait." in prompt


def without_call_ids(prompt, output):
    for item in output:
        prompt = prompt.replace(getattr(item, "call_id", None) or "none", "call")
    return prompt


async def test_a_history_of_items_makes_the_prompt_of_the_same_history_of_messages():
    service = service_of(ANSWER)
    output = (await answer_of(service, input=[USER], tools=[CLOSE, FREE]))["output"]
    as_items = await prompt_with(*output, *results_of(output), tools=[CLOSE, FREE])
    calls = [
        {"id": item["call_id"], "type": "function",
         "function": {"name": item["name"], "arguments": item.get("arguments") or json.dumps({"input": item["input"]})}}
        for item in output if "call_id" in item
    ]  # fmt: skip
    [thought, text, *_] = output
    message = {
        "role": "assistant",
        "content": text["content"][0]["text"],
        "reasoning_content": thought["content"][0]["text"],
        "tool_calls": calls,
    }
    results = [{"role": "tool", "tool_call_id": stated["id"], "content": "done"} for stated in calls]
    service = service_of("x")
    await service.post("/v1/chat/completions", {"model": MODEL, "messages": [USER, message, *results]})
    assert as_items.endswith(prompt_of(service))


@pytest.mark.parametrize(
    "fields",
    [
        {"content": [TEXT]},
        {"content": [TEXT], "status": "completed", "encrypted_content": None},
        {"content": [TEXT], "encrypted_content": "sealed by another"},
        {"content": [{"type": "reasoning_text", "text": "H"}, {"type": "reasoning_text", "text": "m."}]},
        {"summary": [{"type": "summary_text", "text": "Hm."}]},
        {"summary": [{"type": "summary_text", "text": "Hm."}], "content": None, "encrypted_content": None},
        {"summary": [{"type": "summary_text", "text": "Hm."}], "content": []},
        {"encrypted_content": seal("Hm.", OPEN)},
        {"content": None, "encrypted_content": seal("Hm.", OPEN), "status": None, "id": None},
        {"content": [], "encrypted_content": seal("Hm.", OPEN)},
    ],
    ids=json.dumps,
)  # fmt: skip
async def test_thinking_comes_back_in_every_form(fields):
    items = [THOUGHT | fields, REPLY, ITEM]
    assert "assistant:<think>Hm.</think>Yes." in await prompt_with(*items)
    assert await ignored_of(input=[USER, *items]) is None


@pytest.mark.parametrize("fields", [{}, {"content": None}, {"content": [], "encrypted_content": None}], ids=json.dumps)
async def test_thinking_that_says_nothing_is_none(fields):
    assert await prompt_with(THOUGHT | fields, REPLY, ITEM) == await prompt_with(REPLY, ITEM)
    assert await ignored_of(input=[USER, THOUGHT | fields, REPLY, ITEM]) is None


@pytest.mark.parametrize("sealed", ["gAAAAB", "", "a.b", seal("Hm.", b"another's key"), seal("Hm.", OPEN)[:-2] + "AA"])
async def test_thinking_that_another_has_sealed_is_left_out_and_told(sealed):
    items = [THOUGHT | {"encrypted_content": sealed}, REPLY, ITEM]
    assert await prompt_with(*items) == await prompt_with(REPLY, ITEM)
    assert await ignored_of(input=[USER, *items]) == ("input[].encrypted_content" if sealed else None)


async def test_thinking_is_sealed_for_the_key_of_the_client():
    keys = {"api_keys": ["first", "second"]}

    async def post(key, items, **fields):
        service = Service(
            [*tokens("<think>Hm.</think>Yes."), FinishReason.STOP],
            model={"chat_template": ChatTemplate(TEMPLATE, TOKENIZER.special_tokens), "max_model_len": 4096},
            **keys,
        )
        body = {"model": MODEL, "input": items} | fields
        answer = await service.post("/v1/responses", body, headers={"authorization": f"Bearer {key}"})
        return answer, prompt_of(service)

    answer, _ = await post("first", [USER], include=SEALED)
    thought, reply = answer.json()["output"]
    stateless = {"type": "reasoning", "summary": [], "encrypted_content": thought["encrypted_content"]}
    answer, prompt = await post("first", [USER, stateless, reply, ITEM])
    assert ("<think>Hm.</think>" in prompt, HEADER in answer.headers) == (True, False)
    answer, prompt = await post("second", [USER, stateless, reply, ITEM])
    assert ("<think>" in prompt, answer.headers[HEADER]) == (False, "input[].encrypted_content")


async def test_thinking_is_sealed_on_demand_alone():
    for fields, is_sealed in (({"include": SEALED}, True), ({"include": []}, False), ({}, False)):
        [thought, *_] = (await answer_of(service_of(ANSWER), tools=TOOLS, **fields))["output"]
        assert ("encrypted_content" in thought) == is_sealed
        assert thought["content"][0]["text"] == "Hm. 🌍"


async def test_thinking_before_a_call_belongs_to_it_and_that_of_a_cut_answer_to_no_user():
    made = {"type": "function_call", "call_id": "c", "name": "close_agent", "arguments": "{}"}
    thought = THOUGHT | {"content": [TEXT]}
    prompt = await prompt_with(REPLY, thought, made, tools=[CLOSE])
    assert "assistant:Yes.\nassistant:<think>Hm.</think>" in prompt
    prompt = await prompt_with(thought, ITEM)
    assert "user:Go.\nassistant:<think>Hm.</think>\nuser:And?" in prompt
    prompt = await prompt_with(thought)
    assert prompt.endswith("user:Go.\nassistant:<think>Hm.</think>\nassistant:")


async def test_a_long_input_is_read_elsewhere_and_told_alike():
    """Its sealed thinking is read in the process for long bodies."""
    items = [
        {"role": "user", "content": "x" * 40_000},
        THOUGHT | {"encrypted_content": seal("Hm.", OPEN)},
        THOUGHT | {"encrypted_content": "another's"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        REPLY,
        ITEM,
    ]
    service = service_of("Hello", max_model_len=10**6)
    answer = await service.post("/v1/responses", {"model": MODEL, "input": items})
    assert answer.status_code == 200, answer.text
    assert answer.headers[HEADER] == "input[], input[].encrypted_content"
    assert "assistant:<think>Hm.</think>Yes." in prompt_of(service)


HOSTED = [
    {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "a"}},
    {"type": "file_search_call", "id": "fs_1", "queries": ["a"], "results": None},
    {"type": "code_interpreter_call", "id": "ci_1", "code": "1", "container_id": "c"},
    {"type": "image_generation_call", "id": "ig_1", "result": None, "status": "completed"},
    {"type": "mcp_call", "id": "mcp_1", "name": "a", "arguments": "{}", "server_label": "b"},
    {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "a", "tools": []},
    {"type": "computer_call", "id": "cu_1", "call_id": "c", "pending_safety_checks": []},
    {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
    {"type": "apply_patch_call", "call_id": "c", "operation": {"type": "delete_file", "path": "a"}},
    {"type": "tool_search_call", "arguments": {}},
    {"type": "an_item_of_tomorrow", "with": {"any": "field"}},
]


@pytest.mark.parametrize("item", HOSTED, ids=lambda item: item["type"])
async def test_an_item_of_a_tool_that_openai_runs_is_left_out_and_told(item):
    assert await prompt_with(item, REPLY, ITEM) == await prompt_with(REPLY, ITEM)
    assert await ignored_of(input=[USER, item, REPLY, ITEM]) == "input[]"
    strict = await refusal(Service(strict_fields=True), input=[USER, item])
    assert strict["param"] == "input[1]"


SAME = {
    "a string": "And?",
    "input_text": [{"type": "input_text", "text": "And?"}],
    "text": [{"type": "text", "text": "And?"}],
    "output_text": [{"type": "output_text", "text": "And?", "annotations": [], "logprobs": []}],
    "refusal": [{"type": "refusal", "refusal": "And?"}],
    "two": [{"type": "input_text", "text": "An"}, {"type": "input_text", "text": "d?"}],
}


@pytest.mark.parametrize("content", SAME.values(), ids=SAME)
async def test_text_may_be_in_any_part(content):
    assert await prompt_with(REPLY | {"content": content}, ITEM) == await prompt_with(REPLY | {"content": "And?"}, ITEM)


RESULTS = {
    "null": (None, ""),
    "empty": ([], ""),
    "parts": ([{"type": "input_text", "text": "a"}, {"type": "output_text", "text": "b"}], "ab"),
    "a string": ("ab", "ab"),
}


@pytest.mark.parametrize(("output", "text"), RESULTS.values(), ids=RESULTS)
async def test_a_result_may_be_a_text_or_parts_or_nothing(output, text):
    made = {"type": "function_call", "call_id": "c", "name": "close_agent", "arguments": "{}", "namespace": None}
    result = {"type": "function_call_output", "call_id": "c", "output": output, "status": None, "caller": None}
    assert (await prompt_with(made, result, tools=[CLOSE])).endswith(f"\ntool:{text}\nassistant:")
    assert await ignored_of(input=[USER, made, result], tools=[CLOSE]) is None


async def test_a_model_that_reads_text_alone_leaves_out_the_images_of_results():
    image = {"type": "input_image", "image_url": "data:image/png;base64,AA"}
    made = {"type": "function_call", "call_id": "c", "name": "close_agent", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "c", "output": [image]}
    response = await Service().post("/v1/responses", {"model": MODEL, "input": [USER, made, result]})
    assert (response.status_code, response.headers["x-levserve-ignored"]) == (200, "input[].output[].image_url")


HINTS = {
    "reasoning.summary": {"reasoning": {"summary": "auto"}},
    "reasoning.effort": {"reasoning": {"effort": "medium"}},
    "text.verbosity": {"text": {"verbosity": "low"}},
    "max_tool_calls": {"max_tool_calls": 3},
    "service_tier": {"service_tier": "flex"},
    "prompt_cache_retention": {"prompt_cache_retention": "24h"},
    "include[]": {"include": ["file_search_call.results"]},
    "input[].caller": {"input": [USER | {"caller": {"type": "program", "caller_id": "a"}}]},
    "input[].something": {"input": [USER | {"something": 1}]},
    "tools[].defer_loading": {"tools": [CLOSE | {"defer_loading": True}]},
    "something": {"something": {"any": "thing"}},
}
NOTHING = {
    "client_metadata": {"client_metadata": {"session": "a"}},
    "prompt_cache_key": {"prompt_cache_key": "a"},
    "phase": {"input": [USER | {"phase": "commentary"}, USER | {"phase": "of tomorrow"}]},
    "caller": {"input": [USER | {"caller": {"type": "direct"}}]},
    "nulls": {"instructions": None, "max_tool_calls": None, "reasoning": None, "text": None, "truncation": None},
    "a tool's nulls": {"tools": [CLOSE | {"strict": None, "defer_loading": None}]},
    "parallel calls": {"parallel_tool_calls": False, "tools": [CLOSE]},
    "include": {"include": SEALED},
    "no truncation": {"truncation": "disabled"},
    "auto": {"service_tier": "auto", "truncation": "auto"},
}


@pytest.mark.parametrize(("name", "fields"), HINTS.items(), ids=HINTS)
async def test_a_hint_without_effect_is_told(name, fields):
    assert await ignored_of(**fields) == name


@pytest.mark.parametrize("fields", NOTHING.values(), ids=NOTHING)
async def test_what_asks_for_nothing_that_is_not_done_is_not_told(fields):
    assert await ignored_of(**fields) is None


async def test_vllms_fields_have_the_effect_that_they_have_on_chats():
    service = service_of("Hello")
    fields = {
        "ignore_eos": True, "top_k": 7, "min_p": 0.25, "repetition_penalty": 1.5, "seed": 3, "min_tokens": 1,
        "logit_bias": {"5": -1.5}, "priority": 4, "cache_salt": "a", "stop_token_ids": [9], "bad_words": ["no"],
        "temperature": 0.5, "top_p": 0.75,
    }  # fmt: skip
    answer = await answer_of(service, stop=["lo"], **fields)
    assert answer["output"][0]["content"][0]["text"] == "Hel"
    of_response = service.engine.last.request
    service = service_of("Hello")
    await service.post("/v1/chat/completions", {"model": MODEL, "messages": [USER | {"content": "hi"}], **fields})
    of_chat = service.engine.last.request
    assert of_response.sampling == of_chat.sampling
    for name in ("prompt_ids", "stop_ids", "priority", "cache_salt", "max_tokens"):
        assert getattr(of_response, name) == getattr(of_chat, name)
    assert (of_response.sampling.seed, of_response.sampling.top_k) == (3, 7)


async def test_a_grammar_may_be_stated_as_vllms_clients_do():
    service = service_of("yes")
    await answer_of(service, structured_outputs={"choice": ["yes", "no"]})
    assert service.engine.last.request.constraint is not None
    both = {"structured_outputs": {"regex": "a"}, "text": {"format": {"type": "json_object"}}}
    assert (await refusal(**both))["param"] == "structured_outputs"
    for fields, param in (({"n": 2}, "n"), ({"top_k": -2}, "top_k"), ({"stop_regex": "a"}, "stop_regex")):
        error = await refusal(**fields)
        assert (error["param"], "messages" in error["message"]) == (param, False)


SWITCHED = "{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}{{ messages[-1].content }}"


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning": {"effort": "none"}},
        {"reasoning_effort": "none"},
        {"enable_thinking": False},
        {"thinking": {"type": "disabled"}},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
    ids=json.dumps,
)
async def test_thinking_is_switched_off_in_every_shape(fields):
    service = Service(model={"chat_template": ChatTemplate(SWITCHED, TOKENIZER.special_tokens)})
    answer = await service.post("/v1/responses", {"model": MODEL, "input": "hi"} | fields)
    assert (answer.status_code, HEADER in answer.headers) == (200, False)
    assert prompt_of(service) == "Falsehi"
