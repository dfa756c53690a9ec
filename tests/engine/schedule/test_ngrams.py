"""Drafts from a text itself: what followed the latest tokens before, in linear time and bounded memory."""

import random

import pytest

from service.engine.schedule.ngrams import FEW_TOKENS, MAX_PLACES, ORDERS, NgramIndex, continued


def found(token_ids):
    index = NgramIndex(token_ids, len(token_ids))
    index.extend()
    return index.find(token_ids)


def expected(token_ids):
    """Return the position after the last occurrence of the most latest tokens, by looking at each."""
    for order in ORDERS:
        for position in range(len(token_ids) - 1, order - 1, -1):
            if token_ids[position - order : position] == token_ids[-order:]:
                return position
    return None


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 3, 4, 9, FEW_TOKENS, FEW_TOKENS + 2, 300])
def test_the_latest_occurrence_of_the_most_tokens_is_found(num_tokens):
    draw = random.Random(num_tokens)
    texts = [[draw.randrange(4) for _ in range(num_tokens)] for _ in range(40)]
    # Seldom an n-gram takes the place of another one.
    assert sum(found(token_ids) != expected(token_ids) for token_ids in texts) <= 6


def test_a_text_that_grows_is_indexed_as_one_that_was_there():
    draw = random.Random(1)
    token_ids = []
    index, num_missed, num_found = NgramIndex(token_ids, 2_000), 0, 0
    while len(token_ids) < 2_000:
        token_ids += [draw.randrange(5) for _ in range(draw.choice([1, 1, 1, 2, 40]))]
        index.extend()
        num_found += expected(token_ids) is not None
        num_missed += index.find(token_ids) != expected(token_ids)
    assert num_missed <= 0.05 * num_found


def test_large_token_ids_are_found():
    token_ids = [262_143, 151_935, 200_000, 7, 262_143, 151_935, 200_000]
    assert continued(token_ids, found(token_ids), 3) == [7, 262_143, 151_935]


def test_one_token_repeated_takes_bounded_memory_and_is_foreseen():
    token_ids = [5] * 100_000
    index = NgramIndex(token_ids, len(token_ids))
    index.extend()
    assert index.num_bytes <= 4 * len(ORDERS) * MAX_PLACES
    assert continued(token_ids, index.find(token_ids), 7) == [5] * 7


def test_what_is_found_goes_on_with_what_it_says_itself():
    token_ids = [1, 2, 3, 1, 2, 3]
    assert continued(token_ids, 3, 7) == [1, 2, 3, 1, 2, 3, 1]


def test_tokens_of_the_same_hash_are_not_taken_for_each_other(monkeypatch):
    monkeypatch.setattr("service.engine.schedule.ngrams.FACTORS", (0,) * max(ORDERS))
    assert found([1, 2, 3, 4, 9, 9, 9]) is None
