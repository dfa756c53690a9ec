"""Answers in forms that a family's template does not write, but its models do now and then."""

import pytest

from service.text.formats.parts import Arguments, CallStart, Content, Thought
from tests.text.formats.test_reader import read, tokens
from tests.text.formats.vectors import FORMS

DSML = '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n{}\n</｜DSML｜invoke>\n</｜DSML｜function_calls>'
DEEPSEEK = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
KIMI = "<|tool_calls_section_begin|><|tool_call_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
INVOKE = '<minimax:tool_call>\n<invoke name="get_weather">\n{}\n</invoke>\n</minimax:tool_call>'
CODER = "<tool_call>\n<function=get_weather>\n{}\n</function>\n</tool_call>"
CLOCK, WEATHER = [("clock", "{}")], [("get_weather", '{"city": "Ulm"}')]

# By form: texts, each with its reasoning, its content and its calls.
CASES = {
    "openai": [
        ("plain answer without a header", "", "plain answer without a header", []),
        ("<|channel|>analysis<|message|>A<|channel|>final<|message|>B<|return|>", "A", "B", []),
        ("<|channel|>analysis to=functions.clock code<|message|>{}<|call|>", "", "", CLOCK),
    ],
    "hermes": [
        ("C</think>D", "", "CD", []),
        ("<tool_call>\n<tool_call>\n{\"name\": \"clock\", \"arguments\": {}}\n</tool_call></tool_call>", "", "", CLOCK),
        ("<tool_call>\nnot a call\n</tool_call> after", "", "not a call\nafter", []),
        ("<tool_call>\n{\"name\": \"clock\", \"arguments\": {}, \"note\": \"x}\"}\n</tool_call>", "", "", CLOCK),
        ("<tool_call>\n{\"function\": {\"name\": \"clock\", \"arguments\": null}}\n</tool_call>", "", "", CLOCK),
        ("<tool_call>\n[{\"name\": \"clock\", \"arguments\": {}}]\n</tool_call>", "", "", CLOCK),
        ("```\n<tool_call>\n{\"name\": \"clock\", \"arguments\": {}}\n</tool_call>\n```", "", "```\n```", CLOCK),
    ],
    "qwen3_coder": [
        (CODER.format("<parameter=city>\nUlm\n</parameter>").replace("\n</function>", ""), "", "", WEATHER),
        (CODER.format("<parameter=city>Ulm</parameter>"), "", "", WEATHER),
        ("<tool_call>\n{\"name\": \"clock\", \"arguments\": {}}\n</tool_call>", "", "", CLOCK),
    ],
    "glm45": [
        ("<tool_call>get_weather<arg_key>city</arg_key><arg_value>Ulm</arg_value></tool_call>", "", "", WEATHER),
        ("<tool_call>{\"name\": \"clock\", \"arguments\": {}}</tool_call>", "", "", CLOCK),
    ],
    "minimax_m2": [
        (INVOKE.format('<parameter name="city">Ulm'), "", "", WEATHER),
        (INVOKE.format('<parameter name="city">Ulm</parameter>').replace("\n", "") + " tail", "", "tail", WEATHER),
    ],
    "deepseek_v32": [(DSML.format('<｜DSML｜parameter name="city">Ulm</｜DSML｜parameter>'), "", "", WEATHER)],
    "deepseek_v31": [
        (DEEPSEEK.format("function<｜tool▁sep｜>clock\n```json\n{}\n```"), "", "", CLOCK),
        (DEEPSEEK.format("clock<｜tool▁sep｜>{}").replace("<｜tool▁call▁end｜>", "") + "x", "", "x", CLOCK),
    ],
    "kimi_k2": [
        (KIMI.format("clock:0<|tool_call_argument_begin|>{}"), "", "", CLOCK),
        (KIMI.format(" functions.clock:0 <|tool_call_argument_begin|> {} "), "", "", CLOCK),
        ("<|tool_call_begin|>functions.clock:0<|tool_call_argument_begin|>{}<|tool_call_end|>", "", "", CLOCK),
    ],
    "mistral_args": [
        ("[TOOL_CALLS]clock{}", "", "", CLOCK),
        ("[TOOL_CALLS] clock[ARGS]{}", "", "", CLOCK),
        ("[THINK]hm [TOOL_CALLS]clock[ARGS]{}", "hm", "", CLOCK),
    ],
    "llama3_json": [
        ('{"type": "function", "name": "clock", "parameters": {}}', "", "", CLOCK),
        ('{"city": "no call"} and more', "", '{"city": "no call"} and more', []),
    ],
    "pythonic": [
        ("[1] is a citation", "", "[1] is a citation", []),
        ("[get_weather(city=f('x', 2))]", "", "", [("get_weather", "{\"city\": \"f('x', 2)\"}")]),
    ],
    "lfm2": [('<|tool_call_start|>[{"name": "clock", "arguments": {}}]<|tool_call_end|>', "", "", CLOCK)],
    "gemma4": [
        ("<|channel>thought\nhm<|tool_call>call:clock{}<tool_call|><|tool_response>", "hm", "", CLOCK),
        ('<|tool_call>call:get_weather{"city":"Ulm"}<tool_call|>', "", "", WEATHER),
    ],
    "functiongemma": [
        ("<start_function_call>call:clock{}<end_function_call><start_function_response>", "", "", CLOCK)
    ],
    "phi4_mini_json": [('<|tool_call|>{"name": "clock", "arguments": {}}<|/tool_call|>', "", "", CLOCK)],
    "apertus": [('<|tools_prefix|>[{"clock": {}}]', "", "", CLOCK)],
    "nemotron_nano_v2": [("<TOOLCALL>[]</TOOLCALL>none", "", "none", [])],
    "hunyuan_a13b": [
        ('<answer><tool_calls>[{"name": "clock", "arguments": {}}]</tool_calls></answer>', "", "", CLOCK)
    ],
    "cohere": [
        ("<|START_ACTION|>[\n  {\"tool_name\": \"clock\", \"parameters\": {}}\n]<|END_ACTION|>", "", "", CLOCK)
    ],
}  # fmt: skip


def texts_of(parts, kind):
    return "".join(part.text for part in parts if isinstance(part, kind))


@pytest.mark.parametrize("name", CASES)
def test_a_form_that_no_template_writes_is_read_wherever_it_is_cut(name):
    form = FORMS[name]
    for text, thought, content, calls in CASES[name]:
        for ids in ({}, {mark: index for index, mark in enumerate(form.marks)}):
            whole, _ = read(form, tokens(text, ids, 10_000), ids)
            named = [part.name for part in whole if isinstance(part, CallStart)]
            given = [part.text for part in whole if isinstance(part, Arguments)]
            assert (texts_of(whole, Thought), texts_of(whole, Content)) == (thought, content), text
            assert list(zip(named, given, strict=True)) == calls, text
            for size in (1, 2, 3, 5):
                assert read(form, tokens(text, ids, size), ids)[0] == whole, text
