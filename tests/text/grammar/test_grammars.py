"""Patterns, choices and grammars of requests, followed token by token; hostile ones are refused in bounded time."""

import contextlib
import json
import random

import pytest

from service.errors import ConstraintError, InvalidParameter
from service.text.grammar import compiler as limits
from service.text.grammar import definition
from service.text.grammar.matcher import first_line
from service.text.tokenizer import Tokenizer
from tests.text.grammar.random_walks import (
    BYTE_LEVEL,
    BYTE_LEVEL_ENDS,
    NUM_ROWS_BEYOND,
    allowed_tokens,
    compiler,
    random_text,
)
from tests.text.small_tokenizers import outside_metaspace

GRAMMARS = compiler(BYTE_LEVEL, BYTE_LEVEL_ENDS)
NUM_ROWS = BYTE_LEVEL.vocab_size + NUM_ROWS_BEYOND
EXPRESSION = 'start: term ("+" term)*\nterm: /[0-9]/ | "(" start ")"'
GBNF = 'root ::= "yes" | "no" item\nitem ::= [a-c]+ " "'


def compiled(stated):
    return GRAMMARS.compile([stated.part], stated.param)


def texts(stated, num=20):
    grammar = compiled(stated)
    walks = [random_text(grammar, BYTE_LEVEL, BYTE_LEVEL_ENDS, random.Random(seed), 80) for seed in range(num)]
    return {text for text, has_ended in walks if has_ended}


def accepts(stated, text):
    """Return whether each token of a text is allowed after those before it, and the end after the last."""
    matcher = compiled(stated).matcher(BYTE_LEVEL_ENDS)
    for token_id in BYTE_LEVEL.encode(text, add_special_tokens=False):
        if token_id not in allowed_tokens(matcher, NUM_ROWS):
            return False
        matcher.accept(token_id)
    return set(allowed_tokens(matcher, NUM_ROWS)) >= BYTE_LEVEL_ENDS


def test_choices_are_all_that_can_be_said():
    choices = ["yes", "no", 'with "quotes" \\ and\nlines', "ja 🌍", ""]
    assert texts(definition.of_choices(choices, "field"), 60) == set(choices)


def test_a_pattern_matches_the_whole_text():
    stated = definition.of_pattern("[a-c]{2}/\\d|\n", "field")
    assert accepts(stated, "ab/1")
    assert accepts(stated, "\n")
    assert not accepts(stated, "ab/1x")
    assert not accepts(stated, "xab/1")


def test_a_grammar_may_be_larks_or_gbnf():
    stated = definition.of_grammar(EXPRESSION, "field")
    assert accepts(stated, "1+(2+3)")
    assert not accepts(stated, "1+")
    assert not accepts(stated, "(1")
    assert accepts(definition.of_grammar(GBNF, "field"), "noab ")
    assert not accepts(definition.of_grammar(GBNF, "field"), "no")


def test_json_has_no_spaces_but_one_after_a_comma_or_a_colon():
    stated = definition.of_schema({"type": "object"}, "field")
    assert accepts(stated, '{"a": 1, "b":[1,2]}')
    for text in ('{ "a": 1}', '{"a":  1}', '{"a" :1}', ' {"a":1}', '{"a":1}\n', '{"a":\n1}'):
        assert not accepts(stated, text), text


def test_a_name_cannot_be_written_again_with_escapes():
    stated = definition.of_schema({"properties": {"a": {"type": "integer"}}, "additionalProperties": True}, "field")
    assert accepts(stated, '{"a":1,"b":"x"}')
    assert not accepts(stated, '{"a":1,"\\u0061":"x"}')


def test_a_text_ends_where_the_grammar_does_and_only_there():
    matcher = compiled(definition.of_pattern("ab?", "field")).matcher(BYTE_LEVEL_ENDS)
    [a], [b] = BYTE_LEVEL.encode("a", add_special_tokens=False), BYTE_LEVEL.encode("b", add_special_tokens=False)
    assert a in allowed_tokens(matcher, NUM_ROWS)
    assert not BYTE_LEVEL_ENDS & set(allowed_tokens(matcher, NUM_ROWS))
    matcher.accept(a)
    assert set(allowed_tokens(matcher, NUM_ROWS)) == {b, *BYTE_LEVEL_ENDS}
    matcher.accept(b)
    assert set(allowed_tokens(matcher, NUM_ROWS)) == BYTE_LEVEL_ENDS


def test_the_tokens_that_end_a_text_are_the_requests():
    [comma] = BYTE_LEVEL.encode(",", add_special_tokens=False)
    matcher = compiled(definition.of_pattern("[a,]{2}", "field")).matcher({comma, 40})
    [a] = BYTE_LEVEL.encode("a", add_special_tokens=False)
    assert comma not in allowed_tokens(matcher, NUM_ROWS)
    matcher.accept(a)
    matcher.accept(a)
    assert set(allowed_tokens(matcher, NUM_ROWS)) == {comma, 40}


def test_an_end_that_the_vocabulary_lacks_is_no_token_of_a_mask():
    stated = definition.of_choices(["a"], "field")
    grammar = compiler(BYTE_LEVEL, BYTE_LEVEL_ENDS | {10**6}).compile([stated.part], stated.param)
    matcher = grammar.matcher(BYTE_LEVEL_ENDS | {10**6})
    matcher.accept(BYTE_LEVEL.encode("a", add_special_tokens=False)[0])
    assert set(allowed_tokens(matcher, NUM_ROWS)) == BYTE_LEVEL_ENDS


def test_sequences_of_one_grammar_go_their_own_ways():
    grammar = compiled(definition.of_choices(["ab", "cd"], "field"))
    first, second = grammar.matcher(BYTE_LEVEL_ENDS), grammar.matcher(BYTE_LEVEL_ENDS)
    first.accept(BYTE_LEVEL.encode("a", add_special_tokens=False)[0])
    second.accept(BYTE_LEVEL.encode("c", add_special_tokens=False)[0])
    assert not set(allowed_tokens(first, NUM_ROWS)) & set(allowed_tokens(second, NUM_ROWS))


def test_a_token_that_is_not_allowed_fails_its_sequence_and_the_grammar_is_compiled_again():
    stated = definition.of_choices(["only this"], "field")
    grammar = compiled(stated)
    assert compiled(stated) is grammar
    matcher = grammar.matcher(BYTE_LEVEL_ENDS)
    with pytest.raises(ConstraintError, match="'field'") as failed:
        matcher.accept(BYTE_LEVEL.encode("x", add_special_tokens=False)[0])
    assert failed.value.param == "field"
    assert compiled(stated) is not grammar
    assert not matcher.is_free


def test_the_grammars_kept_are_bounded_by_number_and_size(monkeypatch):
    first, second = (definition.of_choices([text], "field") for text in ("a", "b"))
    monkeypatch.setattr(limits, "MAX_KEPT_GRAMMARS", 1)
    grammar = compiled(first)
    assert compiled(first) is grammar
    compiled(second)
    assert compiled(first) is not grammar
    monkeypatch.setattr(limits, "MAX_KEPT_CHARS", 10)
    grammar = compiled(second)
    assert compiled(second) is not grammar


@pytest.mark.parametrize(
    "state",
    [
        lambda: definition.of_pattern("(?=a)", "field"),
        lambda: definition.of_pattern("(" * 1000 + ")" * 1000, "field"),
        lambda: definition.of_pattern("[", "field"),
        lambda: definition.of_pattern("a" * 5000, "field"),
        lambda: definition.of_pattern("\ud800", "field"),
        lambda: definition.of_choices([], "field"),
        lambda: definition.of_choices(["a"] * 1001, "field"),
        lambda: definition.of_choices(["a" * 70_000], "field"),
        lambda: definition.of_grammar("", "field"),
        lambda: definition.of_grammar("start: missing", "field"),
        lambda: definition.of_grammar("start: start", "field"),
        lambda: definition.of_grammar('root ::= "a', "field"),
        lambda: definition.of_grammar("start: %json {}", "field"),
        lambda: definition.of_grammar("x" * 70_000, "field"),
        lambda: definition.of_schema({"const": "\x01"}, "field"),
        lambda: definition.of_schema({"minimum": 3, "maximum": 2, "type": "number"}, "field"),
        lambda: definition.of_schema({"oneOf": [{"type": "object"}, {"type": "object"}]}, "field"),
        lambda: definition.of_schema({"required": ["a"], "additionalProperties": False, "type": "object"}, "field"),
        lambda: definition.of_schema(json.loads('{"const": "\\ud800"}'), "field"),
    ],
)
def test_what_no_mask_can_hold_is_refused(state):
    with pytest.raises(InvalidParameter, match="field") as caught:
        compiled(state())
    assert caught.value.param.startswith("field")


@pytest.mark.parametrize("grammar", ["start: start", r"start: /[^\s\S]/"])
def test_a_grammar_without_a_text_is_refused_with_that_reason(grammar):
    with pytest.raises(InvalidParameter, match="no text satisfies it"):
        compiled(definition.of_grammar(grammar, "field"))


def test_a_model_whose_tokens_are_unknown_has_no_grammars():
    stated = definition.of_choices(["a"], "field")
    for tokenizer, ends in ((Tokenizer(outside_metaspace()), frozenset({2})), (BYTE_LEVEL, frozenset())):
        with pytest.raises(InvalidParameter, match="not supported by this model"):
            compiler(tokenizer, ends).compile([stated.part], stated.param)


@pytest.mark.parametrize(
    "pattern",
    [
        "a{99999}{99999}{99999}",
        "(x+x+)+y",
        "(x{1,99}y{1,99}){1,99}",
        "(?:a?){3000}a{3000}",
        "(a|b)*a(a|b){40}",
        "(.*a){25}",
        "(([a-z]+)*[a-z]+)*!",
    ],
)
@pytest.mark.parametrize("state", [definition.of_pattern, lambda p, field: definition.of_schema({"pattern": p}, field)])
def test_a_pathological_pattern_is_refused_or_followed(state, pattern):
    """Each of these takes a backtracking engine, or one that builds all states ahead, longer than a test may."""
    with contextlib.suppress(InvalidParameter, ConstraintError):
        random_text(compiled(state(pattern, "field")), BYTE_LEVEL, BYTE_LEVEL_ENDS, random.Random(0), 60)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ("", ""),
        ("\n<state>\nexpected a rule\nat line 3", "expected a rule"),
        ("a" * 400, "a" * 300),
        ("panic: out of range", "it is too large"),
        ("NoExtensionBias", "no text satisfies it"),
    ],
)
def test_what_the_library_says_first_is_what_a_client_is_told(error, said):
    assert first_line(error) == said


@pytest.mark.parametrize("text", ["\n", " ", "\r\n", "start\n", "start ", "%llguidance_", "\f\n"])
@pytest.mark.parametrize("end", ["", 'root ::= "a"', "start: A"])
def test_which_syntax_a_grammar_has_is_found_in_one_pass(text, end):
    """Its time may grow with its length alone: 64 KB of empty lines took the library's own test half a minute."""
    from llguidance.gbnf_to_lark import is_lark_syntax

    def is_lark(stated):
        return definition.IS_LARK.search(stated) is not None

    few = text * 20 + end
    assert is_lark(few) == is_lark_syntax(few)
    assert is_lark(text * (definition.MAX_GRAMMAR_CHARS // len(text)) + end) == is_lark(few)


def test_a_grammar_whose_tokens_would_take_long_is_refused_before_one_is_sampled():
    """Each token takes time by the square of what may follow, on the thread that all sequences share."""
    with pytest.raises(InvalidParameter, match="Too many items"):
        compiled(definition.of_grammar("root ::= " + '"a"? ' * 6000, "grammar"))
