"""Answers that the grammar of tools allows, in every format: random tokens never leave a call's name and schema."""

import contextlib
import json
import random

import jsonschema
import pytest

from service.errors import InvalidParameter
from service.text.formats.grammar import CallableTool, CallRules, answer_grammar
from service.text.formats.parameters import parameters_of
from service.text.formats.parts import Arguments, CallStart, Content
from service.text.formats.reader import AnswerReader, mark_ids
from service.text.grammar import definition
from service.text.grammar.compiler import GrammarCompiler
from tests.text.formats.samples import (
    ARGUMENTS,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    ELEMENTS,
    ENDS,
    FORMATS,
    HERMES,
    LLAMA,
    MISTRAL,
    MISTRAL_ARGS,
    ONE_ARGUMENT,
    ONE_ELEMENT,
    QWEN_CODER,
    TOKENIZER,
    TWO_CALLS,
    text_of,
)
from tests.text.grammar.random_walks import allowed_tokens, random_schema

SCHEMA = {"type": "object", "properties": {"q": {"type": "string", "maxLength": 3}}, "required": ["q"]}
SCHEMAS = {"f": SCHEMA | {"additionalProperties": False}, "g-1": {"type": "object", "maxProperties": 0}}


def tool_of(name, schema):
    part = definition.json_part(schema, "field")
    return CallableTool(name, part, parameters_of(part, "field"))


TOOLS = [tool_of(name, schema) for name, schema in SCHEMAS.items()]
COMPILER = GrammarCompiler(TOKENIZER, TOKENIZER.vocab_size, ENDS)
REQUIRED = CallRules(TOOLS, is_required=True, allows_several=True)
ONE = CallRules(TOOLS, is_required=True, allows_several=False)
AUTO = CallRules(TOOLS, is_required=False, allows_several=True)
ids = pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)


def encoded(text):
    return TOKENIZER.encode(text, add_special_tokens=False)


def matcher_of(form, rules, text=""):
    """Return the state after a text, each token of which was allowed."""
    matcher = COMPILER.compile(
        answer_grammar(form, rules, mark_ids(form, TOKENIZER), TOKENIZER.special_ids - ENDS), "tools"
    ).matcher(ENDS)
    for token_id in encoded(text):
        assert token_id in allowed_tokens(matcher, TOKENIZER.vocab_size), (text, TOKENIZER.token_bytes_of(token_id))
        matcher.accept(token_id)
    return matcher


def opening(form):
    return "" if form.calls[0].is_bare else form.calls[0].openings[0]


def can_end(matcher):
    return ENDS.issubset(allowed_tokens(matcher, TOKENIZER.vocab_size))


def answer(form, rules, rng, begun=""):
    """Return a random answer that ended by itself, None if it became too long, and its parts."""
    matcher, token_ids = matcher_of(form, rules, begun), encoded(begun)
    for _ in range(200):
        allowed = allowed_tokens(matcher, TOKENIZER.vocab_size)
        token_id = min(ENDS) if ENDS.issubset(allowed) and rng.random() < 0.5 else rng.choice(allowed)
        if token_id in ENDS:
            texts = {tool.name: {p.name for p in tool.parameters.stated if p.is_text} for tool in rules.tools}
            parser = AnswerReader(form, text_names=texts)
            return parser.push(text_of(token_ids)) + parser.flush()
        matcher.accept(token_id)
        token_ids.append(token_id)
    return None


def calls_of(parts):
    names = [part.name for part in parts if isinstance(part, CallStart)]
    arguments = [
        json.loads("".join(part.text for part in parts if isinstance(part, Arguments) and part.index == index))
        for index in range(len(names))
    ]
    return list(zip(names, arguments, strict=True))


@ids
@pytest.mark.parametrize("rules", [REQUIRED, ONE, AUTO], ids=["required", "one", "auto"])
def test_every_call_has_the_name_and_the_arguments_of_a_tool(form, rules):
    begun = "" if rules is not AUTO else opening(form) or "{"
    found = [answer(form, rules, random.Random(seed), begun) for seed in range(12)]
    ended = [parts for parts in found if parts is not None]
    assert ended
    for parts in ended:
        calls = calls_of(parts)
        assert calls
        assert not any(isinstance(part, Content) for part in parts)
        assert rules is not ONE or len(calls) == 1
        for name, arguments in calls:
            jsonschema.validate(arguments, SCHEMAS[name])


@ids
def test_several_calls_need_leave(form):
    two = TWO_CALLS[form.name].replace(ARGUMENTS, ONE_ARGUMENT).replace(ELEMENTS, ONE_ELEMENT)
    assert can_end(matcher_of(form, REQUIRED, two))
    with pytest.raises(AssertionError):
        matcher_of(form, ONE, two)


@pytest.mark.parametrize("form", [HERMES, QWEN_CODER], ids=lambda form: form.name)
@pytest.mark.parametrize("rules", [REQUIRED, ONE], ids=["several", "one"])
def test_the_line_of_the_last_call_may_end(form, rules):
    one = TWO_CALLS[form.name].replace(ARGUMENTS, ONE_ARGUMENT).replace(ELEMENTS, ONE_ELEMENT)
    one = one[: one.index("</tool_call>") + len("</tool_call>")]
    assert can_end(matcher_of(form, rules, one))
    assert can_end(matcher_of(form, rules, one + "\n"))


@ids
def test_without_a_call_any_text_may_come_and_end_anywhere(form):
    matcher = matcher_of(form, AUTO, "Hello world, {how} are [you] <|turn|>today?")
    assert can_end(matcher)
    assert can_end(matcher_of(form, AUTO))
    assert not can_end(matcher_of(form, REQUIRED))


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        (HERMES, "Let me see. <tool_call>", {b"{", b"\n"}),
        (HERMES, "Let me see. <tool" + "_call>", {b"{", b"\n"}),
        (MISTRAL, "Hello[TOOL_CALLS]", {b"[", b" "}),
        (MISTRAL, "Hello[TOOL_CALLS] [", {b"{"}),
        (MISTRAL_ARGS, "Hello[TOOL_CALLS]g-1", {b"[ARGS]"}),
        (LLAMA, "<|python_tag|>", {b"{"}),
        (QWEN_CODER, "Let me see. <tool_call>", {b"<", b"\n"}),
        (QWEN_CODER, "<tool_call>\n<function=f>", {b"\n", b"<"}),
        (DEEPSEEK_V31, "Hello<｜tool▁calls▁begin｜>", {b"<"}),
        (DEEPSEEK_V3, "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>", {b"f"}),
    ],
)
def test_from_its_opening_on_a_call_is_held(form, text, expected):
    allowed = allowed_tokens(matcher_of(form, AUTO, text), TOKENIZER.vocab_size)
    assert {TOKENIZER.token_bytes_of(token_id)[:1] for token_id in allowed} <= {start[:1] for start in expected}


@pytest.mark.parametrize("form", [HERMES, MISTRAL], ids=lambda form: form.name)
def test_an_opening_that_is_spelled_out_is_text_where_it_is_a_token(form):
    matcher = matcher_of(form, AUTO)
    for character in "Hi " + opening(form):
        [token_id] = encoded(character)
        assert token_id in allowed_tokens(matcher, TOKENIZER.vocab_size)
        matcher.accept(token_id)
    assert can_end(matcher)
    assert len(allowed_tokens(matcher, TOKENIZER.vocab_size)) > 10


@pytest.mark.parametrize("form", [HERMES, MISTRAL], ids=lambda form: form.name)
def test_an_answer_without_a_call_may_have_a_grammar_of_its_own(form):
    rules = CallRules(TOOLS, False, True, definition.of_choices(["yes", "no"], "field").part)
    assert can_end(matcher_of(form, rules, "yes"))
    assert not can_end(matcher_of(form, rules, opening(form)))
    with pytest.raises(AssertionError):
        matcher_of(form, rules, "maybe")


def test_definitions_of_two_tools_may_have_one_name():
    def tool(name, value):
        schema = {
            "type": "object",
            "properties": {"v": {"$ref": "#/$defs/x"}},
            "required": ["v"],
            "$defs": {"x": value},
        }
        return tool_of(name, schema)

    rules = CallRules([tool("f", {"const": 1}), tool("g-1", {"const": 2})], is_required=True, allows_several=False)
    call = '<tool_call>{{"name": "{}", "arguments": {{"v":{}}}}}</tool_call>'
    assert can_end(matcher_of(HERMES, rules, call.format("f", 1)))
    assert can_end(matcher_of(HERMES, rules, call.format("g-1", 2)))
    with pytest.raises(AssertionError):
        matcher_of(HERMES, rules, call.format("f", 2))


@ids
def test_random_schemas_hold_once_a_free_answer_opens_a_call(form):
    num_ended = 0
    for seed in range(30):
        rng = random.Random(seed)
        schema = {"type": "object", "properties": {"x": random_schema(rng)}, "required": ["x"]}
        with contextlib.suppress(InvalidParameter):
            tools = [tool_of("f", schema | {"additionalProperties": False})]
            parts = answer(form, CallRules(tools, False, False), rng, opening(form) or "{")
            for _, arguments in calls_of(parts or ()):
                num_ended += 1
                jsonschema.validate(arguments, schema)
    assert num_ended >= 8


def test_tools_whose_grammar_the_library_cannot_count_are_refused():
    schema = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1200)}}
    tools = [CallableTool(f"f{i}", definition.json_part(schema, "field")) for i in range(10)]
    with pytest.raises(InvalidParameter, match="too large"):
        matcher_of(HERMES, CallRules(tools, is_required=True, allows_several=False))


ELEMENT_SCHEMA = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "short": {"type": "string", "maxLength": 2},
        "colour": {"$ref": "#/$defs/colour"},
        "date": {"type": "string", "pattern": "^[0-9]{2}$"},
        "count": {"type": "integer"},
        "maybe": {"type": ["string", "null"]},
        "mixed": {"enum": ["a", 1]},
        "few": {"type": "string", "enum": ["", "ab", "abc"], "maxLength": 2},
        "odd": {"type": "string", "enum": ["a\n</parameter>", "b"]},
        "fixed": {"const": ""},
        "any": True,
    },
    "required": ["text", "count"],
    "$defs": {"colour": {"enum": ["red", "light green"]}},
}
BEGUN = "<tool_call>\n<function=f>"


def element(name, value):
    return f"\n<parameter={name}>\n{value}\n</parameter>"


def call_of(elements):
    return BEGUN + "".join(element(*pair) for pair in elements) + "\n</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("elements", "is_allowed"),
    [
        ([("text", "any </param> {text}\nof lines"), ("count", "5")], True),
        ([("text", ""), ("count", "5")], True),
        ([("text", "x"), ("short", "ab"), ("colour", "light green"), ("date", '"12"'), ("count", "5")], True),
        ([("text", "x"), ("count", "5"), ("maybe", "null")], True),
        ([("text", "x"), ("count", "5"), ("maybe", '"y"')], True),
        ([("text", "x"), ("count", "5"), ("mixed", '"a"'), ("few", '"ab"'), ("odd", '"b"'), ("fixed", "")], True),
        ([("text", "x"), ("count", "5"), ("any", '["z"]')], True),
        ([("text", "x"), ("count", "5"), ("few", '"abc"')], False),
        ([("text", "x"), ("count", "5"), ("odd", "a")], False),
        ([("text", "x"), ("count", "5"), ("fixed", "x")], False),
        ([("text", "x"), ("count", '"5"')], False),
        ([("text", "x"), ("short", "abc"), ("count", "5")], False),
        ([("text", "x"), ("colour", "blue"), ("count", "5")], False),
        ([("text", "x"), ("date", '"123"'), ("count", "5")], False),
        ([("text", "x")], False),
        ([("count", "5")], False),
        ([("text", "x"), ("other", "y"), ("count", "5")], False),
    ],
)
def test_each_element_is_held_to_the_schema_of_its_parameter(elements, is_allowed):
    rules = CallRules([tool_of("f", ELEMENT_SCHEMA)], is_required=True, allows_several=False)
    text = call_of(elements)
    if is_allowed:
        assert can_end(matcher_of(QWEN_CODER, rules, text))
    else:
        with pytest.raises(AssertionError):
            matcher_of(QWEN_CODER, rules, text)


@pytest.mark.parametrize(
    ("schema", "param"),
    [
        ({"type": "object", "properties": {}, "anyOf": [{"type": "object"}]}, "field.anyOf"),
        ({"type": "object", "properties": {"a": {}}, "minProperties": 1}, "field.minProperties"),
        ({"type": "object", "properties": {}, "required": ["a"]}, "field.required"),
        ({"type": "object", "properties": {"a>b": {}}}, "field.properties"),
        ({"type": "object", "properties": {"a": {"type": "array", "items": {"$ref": "#"}}}}, "field"),
    ],
)
def test_what_separate_elements_cannot_hold_to_is_refused_by_its_path(schema, param):
    with pytest.raises(InvalidParameter) as caught:
        parameters_of(definition.json_part(schema, "field"), "field")
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("schema", "left_out", "written", "unwritten"),
    [
        (
            {"properties": {"a": {"type": "string"}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
            ["anyOf"],
            [[("a", "x")], [("b", "1")], [("a", "x"), ("b", '"y"'), ("c", "[]")], []],
            [[("b", "x")], [("b", "1"), ("a", "1")]],
        ),
        (
            {"properties": {"a": {"type": "integer"}}, "anyOf": [{}], "additionalProperties": False},
            ["anyOf"],
            [[("a", "1")], []],
            [[("b", "1")], [("a", '"1"')]],
        ),
        ({"properties": {"a": {}, "b": {}}, "minProperties": 1}, ["minProperties"], [[], [("a", "1")]], [[("c", "1")]]),
        (
            {"properties": {}, "required": ["a"], "additionalProperties": {"type": "integer"}},
            ["required"],
            [[("a", "1")], [("a", "1"), ("b", "2")]],
            [[], [("a", '"x"')], [("a", "1"), ("b", '"x"')]],
        ),
        ({"properties": {"a>b": {}, "c": {}}, "required": ["a>b"]}, ["properties"], [[], [("c", "1")]], [[("c", "x")]]),
        (
            {"properties": {"a": {"type": "array", "items": {"$ref": "#"}}}},
            [""],
            [[("a", "[]")], [("a", "1")]],
            [[("b", "1")]],
        ),
        (
            {"additionalProperties": {"type": "array", "items": {"$ref": "#"}}},
            [""],
            [[], [("b", "1")]],
            [[("b", "x")]],
        ),
        ({"$ref": "#/$defs/x", "$defs": {"x": {}}}, ["$ref"], [[], [("a", "1"), ("b c", '"x"')]], [[("a", "x")]]),
    ],
)
def test_what_separate_elements_cannot_hold_to_is_left_out_and_named(schema, left_out, written, unwritten):
    part, relaxed = definition.json_part({"type": "object", **schema}, "field", relaxed=[]), []
    tool = CallableTool("f", part, parameters_of(part, "field", relaxed))
    assert relaxed == [f"field.{path}".rstrip(".") for path in left_out]
    rules = CallRules([tool], is_required=True, allows_several=False)
    for elements in written:
        assert can_end(matcher_of(QWEN_CODER, rules, call_of(elements)))
    for elements in unwritten:
        with pytest.raises(AssertionError):
            matcher_of(QWEN_CODER, rules, call_of(elements))


def test_arguments_of_a_schema_that_states_none_are_any():
    rules = CallRules([tool_of("f", {"type": "object"})], is_required=True, allows_several=False)
    text = call_of([("city", '"Ulm"'), ("days", "3")])
    assert can_end(matcher_of(QWEN_CODER, rules, text))
    parser = AnswerReader(QWEN_CODER, text_names={"f": frozenset()})
    assert calls_of(parser.push(text) + parser.flush()) == [("f", {"city": "Ulm", "days": 3})]


@ids
def test_a_tool_without_its_schema_is_called_with_any_arguments(form):
    schema = {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["days"]}
    tools = [tool_of("f", {"type": "object", **schema}).with_any_arguments()]
    rules = CallRules(tools, is_required=True, allows_several=False)
    found = [answer(form, rules, random.Random(seed)) for seed in range(12)]
    calls = [call for parts in found if parts is not None for call in calls_of(parts)]
    assert calls
    assert all(name == "f" and isinstance(arguments, dict) for name, arguments in calls)
    if not form.calls[0].codec.is_json:
        matcher = matcher_of(form, rules, call_of([("city", "Ulm, not JSON"), ("days", '"3"')]))
        assert can_end(matcher)


@ids
@pytest.mark.parametrize("name", ["mcp.files/read:all-1_2", "a" * 128, "."])
def test_names_may_have_what_clients_of_mcp_join_them_with(form, name):
    rules = CallRules([tool_of(name, {"type": "object", "maxProperties": 0})], is_required=True, allows_several=False)
    [(found, arguments)] = calls_of(answer(form, rules, random.Random(1)) or answer(form, rules, random.Random(2)))
    assert (found, arguments) == (name, {})


@pytest.mark.parametrize("is_strict", [True, False])
def test_values_of_elements_may_have_lines_of_their_own_or_none(is_strict):
    head, end = "<tool_call>\n<function=f>\n<parameter=q>", "</parameter>\n</function>\n</tool_call>"
    rules = REQUIRED if is_strict else CallRules([tool.with_any_arguments() for tool in TOOLS], is_required=True)
    for value in ("abc", "", "\nabc\n", "\na\nb\n", "\n\n"):
        assert can_end(matcher_of(QWEN_CODER, rules, head + value + end)), value
        parts = AnswerReader(QWEN_CODER, text_names={"f": {"q"}}).push(head + value + end)
        assert calls_of(parts) == [("f", {"q": value.removeprefix("\n").removesuffix("\n")})]
    if is_strict:
        for value in ("abcd", "\nabcd\n"):
            with pytest.raises(AssertionError):
                matcher_of(QWEN_CODER, rules, head + value + end)
