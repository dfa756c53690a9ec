import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.text.formats.families import FAMILIES
from service.text.formats.parts import Arguments, CallStart, Content
from service.text.formats.reader import AnswerReader
from tests.text.formats.samples import (
    ARGUMENTS,
    DEEPSEEK_V31,
    FORMATS,
    HERMES,
    LLAMA,
    MISTRAL,
    QWEN_CODER,
    TEXT_NAMES,
    TWO_CALLS,
)
from tests.text.formats.vectors import CLOCK, HARD, TEXTS, WEATHER, joined

BY_NAME = {form.name: form for form in FORMATS}
ANSWERS = [
    *TWO_CALLS.items(),
    ("hermes", f"Let <b me\n{TWO_CALLS['hermes']}"),
    ("hermes", "  \n" + TWO_CALLS["hermes"]),
    ("hermes", " hi  <tool\n"),
    ("hermes", "a <tool_call"),
    ("hermes", 'a\n<tool_call>{"na'),
    ("hermes", f'<tool_call>{{"name": "f", "arguments": {ARGUMENTS[:9]}'),
    ("llama3_json", "<|python_tag|>" + TWO_CALLS["llama3_json"]),
    ("llama3_json", ' \nHello {"name": "f", "parameters": {}}'),
    ("llama3_json", '{"name": "f", "par'),
    ("llama3_json", "<|pyth"),
    ("mistral", "Sure." + TWO_CALLS["mistral"]),
    ("mistral", "[TOOL_CALL] [x]"),
    ("mistral_args", "[TOOL_CALLS]f[AR"),
    ("qwen3_coder", "One moment.\n" + TWO_CALLS["qwen3_coder"]),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\nx\n</param"),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=b>\n[1,"),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\n\n\n</parameter>\n</function>\n"),
    ("qwen3_coder", "<tool_call>\n<funct"),
    ("deepseek_v3", "Sure." + TWO_CALLS["deepseek_v3"]),
    ("deepseek_v3", TWO_CALLS["deepseek_v3"][:-30]),
    ("deepseek_v31", TWO_CALLS["deepseek_v31"][:-8]),
    ("json", "{"),
    ("json", " "),
    ("json", ""),
]


def parse(form, *pieces):
    parser = AnswerReader(form, text_names=TEXT_NAMES)
    parts = [part for piece in pieces for part in parser.push(piece)]
    return joined(parts + parser.flush()), parser


CALLS = [CallStart(0, "f"), Arguments(0, ARGUMENTS), CallStart(1, "g-1"), Arguments(1, "{}")]


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_calls_are_found_in_the_text_of_each_format(form):
    parts, parser = parse(form, TWO_CALLS[form.name])
    assert parts == CALLS
    assert not parser.is_inside_call


@pytest.mark.parametrize(
    ("form", "text", "parts"),
    [
        (HERMES, "One moment.\n" + TWO_CALLS["hermes"], [Content("One moment.\n"), *CALLS]),
        (HERMES, "\n  " + TWO_CALLS["hermes"], CALLS),
        (HERMES, " 2 < 3 <tool> ", [Content(" 2 < 3 <tool> ")]),
        (LLAMA, "<|python_tag|>" + TWO_CALLS["llama3_json"], CALLS),
        (LLAMA, "See: " + TWO_CALLS["llama3_json"], [Content("See: " + TWO_CALLS["llama3_json"])]),
        (MISTRAL, "Sure." + TWO_CALLS["mistral"], [Content("Sure."), *CALLS]),
        (HERMES, "   ", [Content("   ")]),
        (HERMES, "", []),
    ],
)
def test_text_beside_calls_is_content_unless_it_is_blank(form, text, parts):
    assert parse(form, text)[0] == parts


@pytest.mark.parametrize(
    ("form", "text", "parts", "is_inside_call"),
    [
        (HERMES, '<tool_call>{"na', [], True),
        (HERMES, "a <tool", [Content("a <tool")], False),
        (HERMES, '<tool_call>{"name": "f", "arguments": {"a', [CallStart(0, "f"), Arguments(0, '{"a')], True),
        (LLAMA, '{"name": "f", "parameters": {}}', [CallStart(0, "f"), Arguments(0, "{}")], False),
        (MISTRAL, '[TOOL_CALLS][{"name": "f", "arguments": {}}, ', [CallStart(0, "f"), Arguments(0, "{}")],
         False),
        (QWEN_CODER, "<tool_call>\n<function=f>\n<parameter=a>\nx\n</par",
         [CallStart(0, "f"), Arguments(0, '{"a": "x\\n</par')], True),
        (QWEN_CODER, "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n</function>",
         [CallStart(0, "f"), Arguments(0, '{"a": "x"}')], False),
        (QWEN_CODER, "<tool_call>\n<function=f>\n<parameter=a>\nx\n</function>\n</tool_call>",
         [CallStart(0, "f"), Arguments(0, '{"a": "x"}')], False),
        (DEEPSEEK_V31,
         "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁ca",
         [CallStart(0, "f"), Arguments(0, "{}")], False),
    ],
)  # fmt: skip
def test_an_answer_that_is_cut_loses_nothing_that_has_a_meaning(form, text, parts, is_inside_call):
    got, parser = parse(form, text)
    assert (got, parser.is_inside_call) == (parts, is_inside_call)


@given(answer=st.sampled_from(ANSWERS), cuts=st.lists(st.integers(0, 200), max_size=30))
def test_the_parts_do_not_depend_on_where_the_text_was_cut(answer, cuts):
    name, text = answer
    borders = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[start:end] for start, end in pairwise(borders)]
    whole, in_one = parse(BY_NAME[name], text)
    got, in_pieces = parse(BY_NAME[name], *pieces)
    assert got == whole
    assert in_pieces.is_inside_call == in_one.is_inside_call


@pytest.mark.parametrize(("name", "text"), ANSWERS)
def test_a_character_at_a_time_gives_the_same_parts(name, text):
    assert parse(BY_NAME[name], *text)[0] == parse(BY_NAME[name], text)[0]


def test_arguments_arrive_while_they_are_written():
    parser = AnswerReader(HERMES)
    assert parser.push('<tool_call>{"name": "f", "arguments": {"a') == [CallStart(0, "f"), Arguments(0, '{"a')]
    assert parser.push('": 1') == [Arguments(0, '": 1')]
    assert parser.push("}}</tool") == [Arguments(0, "}")]
    assert parser.push("_call>") == []


def test_values_of_elements_arrive_while_they_are_written_texts_escaped_and_others_as_they_are():
    parser = AnswerReader(QWEN_CODER, text_names=TEXT_NAMES)
    assert parser.push("<tool_call>\n<function=f>\n<parameter=a>\n") == [CallStart(0, "f"), Arguments(0, '{"a": "')]
    assert parser.push('é "b"') == [Arguments(0, 'é \\"b\\"')]
    assert parser.push("\n") == []
    assert parser.push("c\n</parameter>") == [Arguments(0, '\\nc"')]
    assert parser.push("\n<parameter=b>\n[1,") == [Arguments(0, ', "b": [1,')]
    assert parser.push(" 2]\n</parameter>\n</function>\n</tool_call>") == [Arguments(0, " 2]}")]


@pytest.mark.parametrize(
    "form", [pytest.param(form, id=f"{form.name}-{i}") for i, form in enumerate(FAMILIES) if not form.has_headers]
)
def test_calls_that_are_written_for_a_template_that_drops_them_are_read_back(form):
    calls = [WEATHER, CLOCK, HARD]
    reader = AnswerReader(form, text_names=TEXTS)
    parts = joined([*reader.push(form.calls[0].written(calls)), *reader.flush()])
    names = [part.name for part in parts if isinstance(part, CallStart)]
    arguments = [json.loads(part.text) for part in parts if isinstance(part, Arguments)]
    assert list(zip(names, arguments, strict=True)) == calls
