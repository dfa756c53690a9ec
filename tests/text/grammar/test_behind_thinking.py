"""A grammar holds what follows the thinking, and nothing before it."""

import pytest
from tokenizers import AddedToken

from service.text.formats.format import THINK
from service.text.grammar import definition
from service.text.grammar.behind_thinking import MAX_SPACES, GrammarBehindThinking, ThinkingTags, space_tokens
from service.text.tokenizer import Tokenizer
from tests.text.grammar.random_walks import BYTE_LEVEL_ENDS, NUM_ROWS_BEYOND, allowed_tokens, compiler
from tests.text.small_tokenizers import byte_level


def tagged():
    backend = byte_level(600)
    backend.add_tokens([AddedToken("</think>", special=False, normalized=False)])
    return Tokenizer(backend)


TOKENIZER = tagged()
NUM_ROWS = TOKENIZER.vocab_size + NUM_ROWS_BEYOND
TAGS = ThinkingTags.of([THINK], TOKENIZER)
CHOICES = definition.of_choices(["yes", " no"], "field")
GRAMMAR = compiler(TOKENIZER, BYTE_LEVEL_ENDS).compile([CHOICES.part], "field")
FIRST = set(allowed_tokens(GRAMMAR.matcher(BYTE_LEVEL_ENDS), NUM_ROWS))
THOUGHT = TOKENIZER.encode("Well, yes {", add_special_tokens=False)


def begun(*, is_open, may_end=False):
    return GrammarBehindThinking(GRAMMAR, TAGS, is_open=is_open, may_end=may_end).matcher(BYTE_LEVEL_ENDS)


def allowed(matcher):
    return set(allowed_tokens(matcher, NUM_ROWS))


def follow(matcher, token_ids):
    for token_id in token_ids:
        assert token_id in allowed(matcher)
        matcher.accept(token_id)


def test_tags_of_several_tokens_are_none():
    assert ThinkingTags.of([THINK], Tokenizer(byte_level(600))) is None  # it has one of them


@pytest.mark.parametrize("is_open", [True, False])
def test_the_grammar_begins_behind_the_closing_tag(is_open):
    matcher = begun(is_open=is_open)
    follow(matcher, THOUGHT if is_open else [TAGS.opening_id, *THOUGHT])
    assert allowed(matcher).issuperset(set(range(NUM_ROWS)) - BYTE_LEVEL_ENDS)
    follow(matcher, [TAGS.closing_id])
    assert allowed(matcher) == FIRST
    follow(matcher, TOKENIZER.encode(" no", add_special_tokens=False))
    assert allowed(matcher) == BYTE_LEVEL_ENDS


def test_one_blank_line_may_come_behind_the_closing_tag():
    space_ids = space_tokens(TOKENIZER)
    assert space_ids
    matcher = GrammarBehindThinking(GRAMMAR, TAGS, is_open=True, may_end=False, space_ids=space_ids)
    matcher = matcher.matcher(BYTE_LEVEL_ENDS)
    follow(matcher, [*THOUGHT, TAGS.closing_id])
    for _ in range(MAX_SPACES):
        assert allowed(matcher) == FIRST | space_ids
        follow(matcher, [min(space_ids)])
    assert allowed(matcher) == FIRST
    follow(matcher, TOKENIZER.encode("yes", add_special_tokens=False))
    assert allowed(matcher) == BYTE_LEVEL_ENDS


def test_a_text_that_may_not_end_yet_cannot_end_while_it_thinks():
    matcher = begun(is_open=True)
    assert not matcher.is_free
    assert not allowed(matcher) & BYTE_LEVEL_ENDS
    may_end = begun(is_open=True, may_end=True)
    assert may_end.is_free
    assert allowed(may_end).issuperset(range(NUM_ROWS))
    follow(may_end, [TAGS.closing_id])
    assert not may_end.is_free
    assert allowed(may_end) == FIRST


def test_only_the_first_token_may_begin_thinking():
    matcher = begun(is_open=False)
    assert allowed(matcher) == FIRST | {TAGS.opening_id}
    follow(matcher, TOKENIZER.encode("yes", add_special_tokens=False)[:1])
    assert TAGS.opening_id not in allowed(matcher)


def test_a_copy_advances_by_itself():
    matcher = begun(is_open=True)
    copied = matcher.copy()
    follow(copied, [*THOUGHT, TAGS.closing_id])
    assert allowed(matcher) > FIRST
    assert allowed(copied) >= FIRST
    follow(matcher, [TAGS.closing_id])
    ahead = matcher.copy()
    follow(ahead, TOKENIZER.encode("yes", add_special_tokens=False))
    assert allowed(ahead) == BYTE_LEVEL_ENDS
    assert allowed(matcher) >= FIRST


def test_what_the_grammar_leaves_no_choice_about_is_forced_once_the_thinking_has_ended():
    matcher = begun(is_open=True)
    assert matcher.forced_tokens() == []
    follow(matcher, [TAGS.closing_id])
    assert matcher.forced_tokens() == []
    follow(matcher, TOKENIZER.encode("y", add_special_tokens=False)[:1])
    assert TOKENIZER.decode(matcher.forced_tokens()) == "es"
