import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.engine.constraint import Constraint
from service.errors import InvalidParameter
from service.text.bad_words import BadWords, BadWordsMatcher
from service.text.tokenizer import Tokenizer
from tests.text.small_tokenizers import byte_level, metaspace

VOCAB = 70
IDS = st.integers(0, VOCAB - 1)


def excluded(rule):
    words = np.zeros(-(-VOCAB // 32), np.uint32)
    rule.fill_mask(words)
    return {token_id for token_id in range(VOCAB) if not words[token_id // 32] >> (token_id % 32) & 1}


def test_it_is_a_constraint():
    assert isinstance(BadWordsMatcher({(1,)}), Constraint)


def test_the_last_token_of_a_sequence_is_excluded_once_the_others_have_come():
    rule = BadWordsMatcher({(1, 2, 3), (2, 40), (69,)})
    assert excluded(rule) == {69}
    rule.accept(1)
    assert excluded(rule) == {69}
    rule.accept(2)
    assert excluded(rule) == {3, 40, 69}
    rule.accept(4)
    assert excluded(rule) == {69}


def test_a_sequence_that_cannot_be_completed_yet_leaves_the_next_token_free():
    rule = BadWordsMatcher({(1, 2)})
    assert rule.is_free
    rule.accept(1)
    assert not rule.is_free
    rule.accept(1)
    assert not rule.is_free
    rule.accept(3)
    assert rule.is_free


@given(st.sets(st.lists(IDS, min_size=1, max_size=4).map(tuple), min_size=1, max_size=5), st.lists(IDS, max_size=40))
def test_the_text_of_allowed_tokens_never_has_a_sequence(sequences, wanted):
    rule, text = BadWordsMatcher(sequences), []
    for token_id in wanted:
        now = excluded(rule)
        assert rule.is_free == (not now)
        expected = {
            s[-1] for s in sequences if len(s) - 1 <= len(text) and text[len(text) - len(s) + 1 :] == list(s[:-1])
        }
        assert now == expected
        if token_id not in now:
            text.append(token_id)
            rule.accept(token_id)
    pairs = {tuple(text[i : i + len(s)]) for s in sequences for i in range(len(text))}
    assert not pairs & sequences


@pytest.mark.parametrize("make", [byte_level, metaspace])
def test_a_word_is_excluded_with_and_without_a_space_before_it(make):
    tokenizer = Tokenizer(make())
    sequences = BadWords.of(["world", " world"], tokenizer).sequences
    for text in ("world", " world"):
        assert tuple(tokenizer.encode(text, add_special_tokens=False)) in sequences
    assert () not in BadWords.of([" "], tokenizer).sequences


def test_half_a_character_is_refused_by_its_place():
    with pytest.raises(InvalidParameter) as caught:
        BadWords.of(["a", "\ud800"], Tokenizer(byte_level()))
    assert caught.value.param == "bad_words[1]"
