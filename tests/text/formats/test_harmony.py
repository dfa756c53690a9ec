"""gpt-oss's answers, whole and cut at every character, the grammar of its calls, and what its template is given."""

import json
import random

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.text.formats.families import HARMONY as FORMAT
from service.text.formats.grammar import CallableTool, CallRules, answer_grammar
from service.text.formats.history import one_call_a_message
from service.text.formats.parts import Arguments, CallStart, Content, Thought
from service.text.formats.reader import AnswerReader, mark_ids
from service.text.grammar import definition
from service.text.grammar.compiler import GrammarCompiler
from service.text.tokenizer import Tokenizer
from tests.text.formats.vectors import joined
from tests.text.grammar.random_walks import allowed_tokens
from tests.text.small_tokenizers import byte_level

THINKING = "<|channel|>analysis<|message|>We add.<|end|>"
ARGUMENTS = '{"city": "Zürich <x>", "days": 3}'
CALL_MESSAGE = (
    f"<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{ARGUMENTS}<|call|>"
)
FINAL = "<|start|>assistant<|channel|>final<|message|>It is 4.<|return|>"
CALLED = [CallStart(0, "get_weather"), Arguments(0, ARGUMENTS)]
ANSWERS = [
    (THINKING + FINAL, [Thought("We add."), Content("It is 4.")]),
    (THINKING + FINAL.removesuffix("<|return|>"), [Thought("We add."), Content("It is 4.")]),
    (THINKING + CALL_MESSAGE, [Thought("We add."), *CALLED]),
    (CALL_MESSAGE.removeprefix("<|start|>assistant"), CALLED),
    # The recipient before the channel, without a type; in another channel; of another type.
    (f" to=functions.get_weather<|channel|>commentary json<|message|>{ARGUMENTS}<|call|>", CALLED),
    (f"<|channel|>analysis to=functions.get_weather code<|message|>{ARGUMENTS}<|call|>", CALLED),
    (f"<|channel|>commentary to=get_weather<|message|>{ARGUMENTS}", CALLED),
    # Two messages of thinking, and a preamble before a call.
    (
        f"{THINKING}<|start|>assistant{THINKING}<|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
        + CALL_MESSAGE,
        [Thought("We add.\nWe add."), Content("I look."), *CALLED],
    ),
    ("<|channel|>final <|constrain|>json<|message|>{}<|return|>", [Content("{}")]),
    ("<|channel|>final<|message|>a < b <| c <|en", [Content("a < b <| c <|en")]),
    # A channel too many, as small models write.
    (f"<|channel|>commentary{THINKING}{FINAL}", [Thought("We add."), Content("It is 4.")]),
    # Cut within the thinking, within a header, within arguments.
    ("<|channel|>analysis<|message|>We", [Thought("We")]),
    (f"{THINKING}<|start|>assistant<|channel|>fin", [Thought("We add.")]),
    ("<|channel|>commentary to=functions.get_w", []),
    (THINKING + CALL_MESSAGE[:-20], [Thought("We add."), CallStart(0, "get_weather"), Arguments(0, ARGUMENTS[:-12])]),
    # Without a header: what is no message is content.
    ("Hello <b>you</b>", [Content("Hello <b>you</b>")]),
    ("", []),
]


MARKS = FORMAT.marks


def read(*pieces, has_calls=True, begins=None):
    reader = AnswerReader(FORMAT if has_calls else FORMAT.without_calls, begins=begins)
    parts = [part for piece in pieces for part in reader.push(piece)]
    return joined(parts + reader.flush()), reader


@pytest.mark.parametrize(("text", "expected"), ANSWERS)
def test_an_answer_is_read_wherever_it_is_cut(text, expected):
    assert read(text)[0] == expected
    assert read(*text)[0] == expected
    for cut in range(len(text)):
        assert read(text[:cut], text[cut:])[0] == expected


@given(
    st.lists(st.sampled_from([*MARKS, "analysis", "final", "commentary", " to=functions.f", "assistant", "a", "{}"]))
)
def test_no_mark_is_shown_and_no_order_of_marks_is_a_fault(pieces):
    whole, _ = read("".join(pieces))
    assert read(*pieces)[0] == whole
    texts = [part.text for part in whole if not isinstance(part, CallStart)]
    assert not any(mark in text for text in texts for mark in MARKS)


def test_a_recipient_is_no_call_where_there_are_no_tools():
    assert read(THINKING + CALL_MESSAGE, has_calls=False)[0] == [Thought("We add."), Content(ARGUMENTS)]


def test_an_answer_may_have_begun_in_the_prompt():
    assert read("and so on<|return|>", begins=Content)[0] == [Content("and so on")]


def test_tokens_of_thinking_are_counted_with_its_marks():
    pieces = ["<|channel|>", "analysis", "<|message|>", "We", " add", "<|end|>", "<|start|>", "assistant"]
    reader = AnswerReader(FORMAT.without_calls)
    for piece in [*pieces, "<|channel|>", "final", "<|message|>", "It", " is"]:
        reader.push(piece)
    assert reader.num_thinking == len(pieces) + 2
    assert not reader.is_inside_call


def _tokenizer():
    backend = byte_level(600)
    backend.add_special_tokens(list(MARKS))
    return Tokenizer(backend)


TOKENIZER = _tokenizer()
ENDS = frozenset(mark_ids(FORMAT, TOKENIZER)[mark] for mark in FORMAT.ends)
COMPILER = GrammarCompiler(TOKENIZER, TOKENIZER.vocab_size, ENDS)
SCHEMAS = {
    "f": {
        "type": "object",
        "properties": {"q": {"enum": ["x", "y"]}},
        "required": ["q"],
        "additionalProperties": False,
    },
    "server.g": {"type": "object", "maxProperties": 0},
}
TOOLS = [CallableTool(name, definition.json_part(schema, "tools")) for name, schema in SCHEMAS.items()]


def matcher_of(text, *, is_required, answer=None):
    rules = CallRules(TOOLS, is_required, allows_several=False, answer=answer)
    matcher = COMPILER.compile(
        answer_grammar(FORMAT, rules, mark_ids(FORMAT, TOKENIZER), frozenset()), "tools"
    ).matcher(ENDS)
    for token_id in TOKENIZER.encode(text, add_special_tokens=False):
        assert token_id in allowed_tokens(matcher, TOKENIZER.vocab_size), (text, TOKENIZER.token_bytes_of(token_id))
        matcher.accept(token_id)
    return matcher


def can_end(matcher):
    return not ENDS.isdisjoint(allowed_tokens(matcher, TOKENIZER.vocab_size))


@pytest.mark.parametrize("is_required", [True, False])
@pytest.mark.parametrize(
    "head",
    [
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
        f"{THINKING}<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
        f"{THINKING}<|start|>assistant<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
        " to=functions.f<|channel|>commentary json<|message|>",
        "<|channel|>commentary to=functions.f<|message|>",
    ],
)
def test_a_call_in_each_form_is_held_to_its_schema(head, is_required):
    assert can_end(matcher_of(head + '{"q": "x"}', is_required=is_required))
    matcher = matcher_of(head + '{"q": "', is_required=is_required)
    allowed = {TOKENIZER.token_bytes_of(i)[:1] for i in allowed_tokens(matcher, TOKENIZER.vocab_size)}
    assert allowed == {b"x", b"y"}


def test_an_answer_without_a_call_is_free_unless_calls_are_required():
    text = f"{THINKING}<|start|>assistant<|channel|>final<|message|>Hello {{you}}"
    assert can_end(matcher_of(text, is_required=False))
    with pytest.raises(AssertionError):
        matcher_of(text, is_required=True)
    assert not can_end(matcher_of(THINKING, is_required=False))


def test_a_schema_of_the_answer_holds_the_final_message_alone():
    answer = {"json_schema": definition.json_part({"type": "object", "maxProperties": 0}, "response_format")}
    begun = f"{THINKING}<|start|>assistant<|channel|>final <|constrain|>json<|message|>"
    assert can_end(matcher_of(begun + "{}", is_required=False, answer=answer))
    matcher = matcher_of(begun, is_required=False, answer=answer)
    assert {TOKENIZER.token_bytes_of(i)[:1] for i in allowed_tokens(matcher, TOKENIZER.vocab_size)} == {b"{"}


def test_calls_are_those_of_tools_with_their_arguments_whatever_is_sampled():
    ended = 0
    for seed in range(12):
        rng = random.Random(seed)
        matcher, token_ids = matcher_of("", is_required=True), []
        while len(token_ids) < 200:
            allowed = allowed_tokens(matcher, TOKENIZER.vocab_size)
            marks = [i for i in allowed if TOKENIZER.token_bytes_of(i).startswith(b"<|")]
            token_id = rng.choice(marks if marks and rng.random() < 0.7 else allowed)
            if token_id in ENDS:
                parts, _ = read(b"".join(map(TOKENIZER.token_bytes_of, token_ids)).decode(errors="replace"))
                [name] = [part.name for part in parts if isinstance(part, CallStart)]
                [arguments] = [json.loads(part.text) for part in parts if isinstance(part, Arguments)]
                jsonschema.validate(arguments, SCHEMAS[name])
                ended += 1
                break
            matcher.accept(token_id)
            token_ids.append(token_id)
    assert ended


def test_history_has_a_call_a_message_with_its_result_and_no_content_beside_thinking():
    calls = [{"id": name, "type": "function", "function": {"name": name, "arguments": {}}} for name in "fg"]
    results = [{"role": "tool", "tool_call_id": name, "content": name} for name in "gf"]
    turn = {"role": "assistant", "content": "I look.", "thinking": "Hm.", "tool_calls": calls}
    user = {"role": "user", "content": "hi"}
    assert one_call_a_message([user, turn, *results, user]) == [
        user,
        {"role": "assistant", "content": "", "thinking": "Hm.\nI look.", "tool_calls": calls[:1]},
        results[1],
        {"role": "assistant", "content": "", "tool_calls": calls[1:]},
        results[0],
        user,
    ]
