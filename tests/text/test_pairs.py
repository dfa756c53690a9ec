"""Pairs of texts to token ids."""

import pytest
from tokenizers import processors

from service.errors import InvalidParameter
from service.text.pairs import PairLimits, encode_pairs
from service.text.tokenizer import Tokenizer
from tests.encoder.tiny import CLS, SEP, VOCAB, tokenizer

CAT, DOG, SAT = VOCAB["cat"], VOCAB["dog"], VOCAB["sat"]


def encoded(*pairs, **limits):
    return encode_pairs(Tokenizer(tokenizer()), pairs, ["documents"] * len(pairs), PairLimits(**limits))


def test_the_second_text_comes_after_the_first_with_types_of_its_own():
    assert encoded(("cat", "dog sat"), ("cat cat", "dog")) == [
        ((CLS, CAT, SEP, DOG, SAT, SEP), 3),
        ((CLS, CAT, CAT, SEP, DOG, SEP), 4),
    ]


def test_pairs_are_what_the_tokenizer_itself_makes_of_them():
    [pair] = encoded(("the cat", "a dog"))
    whole = tokenizer().encode("the cat", "a dog")
    assert list(pair.token_ids) == whole.ids
    assert pair.second_from == whole.type_ids.index(1)


def test_a_tokenizer_without_types_has_one_for_both_texts():
    untyped = tokenizer()
    untyped.post_processor = processors.TemplateProcessing(
        "[CLS] $A", "[CLS] $A [SEP] $B", [("[CLS]", CLS), ("[SEP]", SEP)]
    )
    [pair] = encode_pairs(Tokenizer(untyped), [("cat", "dog")], ["documents"], PairLimits())
    assert pair == ((CLS, CAT, SEP, DOG), 4)


@pytest.mark.parametrize(
    ("limits", "token_ids"),
    [
        ({"pair": 5}, (CLS, CAT, SEP, DOG, SEP)),
        ({"second": 1}, (CLS, CAT, SEP, DOG, SEP)),
        ({"pair": 100}, (CLS, CAT, SEP, DOG, SAT, SEP)),
        ({"pair": 4, "second": 2}, (CLS, CAT, SEP, SEP)),
    ],
)
def test_the_second_text_is_cut(limits, token_ids):
    [pair] = encoded(("cat", "dog sat"), **limits)
    assert pair.token_ids == token_ids


def test_a_first_text_that_leaves_no_room_stays_over_the_limit():
    [pair] = encoded(("cat cat cat", "dog"), pair=4)
    assert len(pair.token_ids) > 4


def test_what_is_no_character_is_refused_by_name():
    with pytest.raises(InvalidParameter) as refusal:
        encoded(("cat", "\ud800"))
    assert refusal.value.param == "documents"
