"""Pairs of texts in a prompt: what is around them stays whole, and what is too long is cut at a token."""

import pytest

from service.errors import InvalidParameter
from service.text.pair_template import PairTemplate, encode_templated
from service.text.pairs import PairLimits
from service.text.tokenizer import Tokenizer
from tests.encoder.tiny import VOCAB, tokenizer

TEMPLATE = PairTemplate("the ", "query : ", " on ", " is")


def encoded(*pairs, **limits):
    params = [f"documents[{i}]" for i in range(len(pairs))]
    return encode_templated(Tokenizer(tokenizer()), TEMPLATE, pairs, params, PairLimits(**limits))


def ids(text):
    return tuple(VOCAB[word] for word in text.split())


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({}, "the query : cat on dog sat ran is"),
        ({"pair": 9}, "the query : cat on dog sat ran is"),
        ({"pair": 8}, "the query : cat on dog sat is"),
        ({"pair": 3}, "the query is"),
        ({"pair": 2}, "the is"),
        ({"pair": 1}, "the is"),
        ({"second": 3}, "the query : cat on dog sat ran is"),
        ({"second": 2}, "the query : cat on dog sat is"),
        ({"second": 1}, "the query : cat on dog is"),
        ({"second": 1, "pair": 6}, "the query : cat on is"),
    ],
)
def test_a_pair_is_cut_to_its_limits_and_the_prompt_around_it_is_not(limits, text):
    [pair] = encoded(("cat", "dog sat ran"), **limits)
    assert pair == (ids(text), len(ids(text)))


def test_every_pair_has_the_prompt_of_its_own():
    assert [pair.token_ids for pair in encoded(("cat", "dog"), ("mat", "red tree"))] == [
        ids("the query : cat on dog is"),
        ids("the query : mat on red tree is"),
    ]


@pytest.mark.parametrize("pair", [("cat", "\ud800"), ("\ud800", "cat")])
def test_what_is_no_character_is_refused_by_name(pair):
    with pytest.raises(InvalidParameter) as refusal:
        encoded(("cat", "dog"), pair)
    assert refusal.value.param == "documents[1]"
