"""Prompts with a gap, in the formats of the families."""

import pytest
from tokenizers import AddedToken

from service.errors import InvalidParameter
from service.text.infill import infill_of
from service.text.tokenizer import Tokenizer
from tests.text.small_tokenizers import byte_level, metaspace

QWEN = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
STARCODER = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>")
WORDS = ("▁", "a", "b", "▁a", "▁t", "h", "e", "he", "t", "▁the")
DEEPSEEK = ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>")


def tokenizer_with(names, backend=None, **options):
    backend = backend or byte_level(**options)
    backend.add_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    return Tokenizer(backend)


def prompt_of(tokenizer, before, after):
    return infill_of(tokenizer).prompt_ids(tokenizer, before, after, param="prompt", max_model_len=None)


def names_of(tokenizer, ids):
    return [tokenizer.backend.id_to_token(token_id) for token_id in ids]


@pytest.mark.parametrize("names", [QWEN, STARCODER, DEEPSEEK])
def test_the_texts_before_and_after_a_gap_are_marked(names):
    tokenizer = tokenizer_with(names)
    ids = prompt_of(tokenizer, "Hello ", " you")
    assert "".join(names_of(tokenizer, ids)) == f"{names[0]}HelloĠ{names[1]}Ġyou{names[2]}"


def test_a_prompt_begins_as_the_tokenizer_begins_it():
    tokenizer = tokenizer_with(QWEN, adds_begin=True)
    ids = prompt_of(tokenizer, "a", "b")
    assert names_of(tokenizer, ids) == ["<|begin|>", QWEN[0], "a", QWEN[1], "b", QWEN[2]]


def test_where_nothing_marks_the_gap_the_text_before_it_comes_last():
    tokenizer = tokenizer_with(["[PREFIX]", "[SUFFIX]"])
    ids = prompt_of(tokenizer, "a", "b")
    assert names_of(tokenizer, ids) == ["[SUFFIX]", "b", "[PREFIX]", "a"]


def test_a_suffix_of_sentencepiece_has_no_space_that_is_not_its_own():
    tokenizer = tokenizer_with((), metaspace(words=(*WORDS, "▁<PRE>", "▁<SUF>", "▁<MID>", "▁<EOT>")))
    names = names_of(tokenizer, prompt_of(tokenizer, "a", "b"))
    assert names == ["▁<PRE>", "▁a", "▁<SUF>", "b", "▁<MID>"]
    assert names_of(tokenizer, infill_of(tokenizer).end_ids) == ["▁<EOT>"]


def test_the_prompt_may_be_token_ids():
    tokenizer = tokenizer_with(QWEN)
    ids = tokenizer.encode("Hello", add_special_tokens=False)
    assert prompt_of(tokenizer, ids, "b") == prompt_of(tokenizer, "Hello", "b")


@pytest.mark.parametrize("names", [(), QWEN[:2], QWEN[1:], ("[PREFIX]",)])
def test_a_tokenizer_without_all_tokens_of_a_format_has_none(names):
    assert infill_of(tokenizer_with(names)) is None


def test_a_lone_surrogate_is_refused_by_its_field():
    tokenizer = tokenizer_with(QWEN)
    for before, after, param in (("\ud800", "b", "prompt"), ("a", "\ud800", "suffix")):
        with pytest.raises(InvalidParameter) as refusal:
            prompt_of(tokenizer, before, after)
        assert refusal.value.param == param
