import pickle

import pytest
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import models

from service.errors import ContextLengthExceeded, InvalidParameter
from service.text.generation_defaults import GenerationDefaults
from service.text.pairs import PairLimits, encode_pairs
from service.text.tokenizer import Tokenizer
from tests.text.small_tokenizers import byte_level, metaspace, outside_metaspace


def test_tokenizers_differ_in_a_token_that_one_lacks_or_has_in_another_place_but_not_in_what_was_added():
    one, same, more = (Tokenizer(byte_level()) for _ in range(3))
    assert one.first_difference(one) is one.first_difference(same) is None
    more.backend.add_tokens(["<tool>"])
    assert one.first_difference(more) is more.first_difference(one) is None
    assert Tokenizer(byte_level(num_tokens=400)).first_difference(one) is not None
    moved = Tokenizer(metaspace(words=("▁the", "▁a", "▁", "b", "a", "e", "h", "t", "▁t", "he", "é", "\ufffd", "世")))
    assert Tokenizer(metaspace()).first_difference(moved) in ("a", "b")


def test_a_token_has_bytes_of_its_own():
    tokenizer = Tokenizer(byte_level())
    ids = tokenizer.encode("né🌍", add_special_tokens=False)
    assert b"".join(tokenizer.token_bytes_of(token_id) for token_id in ids) == "né🌍".encode()
    assert tokenizer.token_bytes_of(tokenizer.backend.token_to_id("<|end|>")) == b"<|end|>"
    assert tokenizer.token_bytes_of(10**6) == b""


def test_half_a_surrogate_pair_is_refused():
    with pytest.raises(InvalidParameter) as caught:
        Tokenizer(metaspace()).encode("a\ud800", add_special_tokens=False, param="messages")
    assert caught.value.param == "messages"


def test_a_text_whose_token_the_model_lacks_is_refused():
    backend = byte_level()
    num_rows = backend.get_vocab_size()
    backend.add_special_tokens(["<|beyond|>"])
    tokenizer = Tokenizer(backend, num_rows=num_rows)
    text, reason = "a<|beyond|>", rf"'<\|beyond\|>' \({num_rows}\)"
    with pytest.raises(InvalidParameter, match=f"'messages'.*{reason}"):
        tokenizer.encode(text, add_special_tokens=False, param="messages")
    with pytest.raises(InvalidParameter, match=rf"'input\[1\]'.*{reason}"):
        tokenizer.encode_all(["a", text], params=["input[0]", "input[1]"])
    with pytest.raises(InvalidParameter, match=f"'documents'.*{reason}"):
        encode_pairs(tokenizer, [("a", text)], ["documents"], PairLimits())
    assert tokenizer.encode("a", add_special_tokens=False)
    assert tokenizer.id_of("<|beyond|>") is None
    assert tokenizer.id_of("<|end|>") == backend.token_to_id("<|end|>")
    assert Tokenizer(backend).encode("<|beyond|>", add_special_tokens=False) == [num_rows]
    again = pickle.loads(pickle.dumps(tokenizer))
    with pytest.raises(InvalidParameter):
        again.encode("<|beyond|>", add_special_tokens=False)


def test_special_tokens_are_added_on_demand_only():
    tokenizer = Tokenizer(byte_level(adds_begin=True))
    begin = tokenizer.backend.token_to_id("<|begin|>")
    bare = tokenizer.encode("hi", add_special_tokens=False)
    assert tokenizer.encode("hi", add_special_tokens=True) == [begin, *bare]
    assert max(bare) < tokenizer.vocab_size


@pytest.mark.parametrize("build", [byte_level, metaspace, lambda: LibraryTokenizer(models.WordLevel({"a": 0}, "a"))])
def test_it_counts_all_its_tokens_those_that_were_added_too(build):
    backend = build()
    assert Tokenizer(backend).vocab_size == backend.get_vocab_size(with_added_tokens=True)
    backend.add_tokens(["a", "<tool>", "<tool>"])
    backend.add_special_tokens(["<s>", "<|beyond|>"])
    assert Tokenizer(backend).vocab_size == backend.get_vocab_size(with_added_tokens=True)


def test_a_truncation_saved_after_training_does_not_cut_prompts():
    backend = byte_level()
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    tokenizer = Tokenizer(backend)
    text = "one two three four five six seven"
    token_ids = tokenizer.encode(text, add_special_tokens=True)
    assert tokenizer.decode(token_ids) == text
    assert token_ids == Tokenizer(byte_level()).encode(text, add_special_tokens=True)


def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded():
    tokenizer = Tokenizer(byte_level())
    longest = max(map(len, tokenizer.backend.get_vocab(with_added_tokens=True)))
    text = "a" * (101 * longest)
    for _ in range(2):
        with pytest.raises(ContextLengthExceeded, match="at least 101 tokens") as caught:
            tokenizer.encode(text, add_special_tokens=False, max_model_len=100)
        assert caught.value.param == "prompt"
        tokenizer.backend = None  # the second time, nothing can be encoded
    with pytest.raises(AttributeError):
        tokenizer.encode(text[:-1], add_special_tokens=False, max_model_len=100)


def test_a_text_that_may_fit_is_encoded():
    tokenizer = Tokenizer(byte_level())
    assert tokenizer.encode("Hello world", add_special_tokens=False, max_model_len=8)


@pytest.mark.parametrize("family", [byte_level, metaspace, outside_metaspace])
def test_a_token_of_any_family_has_the_bytes_of_its_text(family):
    tokenizer = Tokenizer(family())
    for text in ("a", "世", "\ufffd"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert b"".join(tokenizer.token_bytes_of(token_id) for token_id in ids).strip() == text.encode()
    assert tokenizer.token_bytes_of(10**6) == b""


def test_a_control_token_is_named_but_not_decoded():
    tokenizer = Tokenizer(byte_level())
    begin, think = (tokenizer.backend.token_to_id(name) for name in ("<|begin|>", "<think>"))
    [hi] = tokenizer.encode("h", add_special_tokens=False)
    assert tokenizer.decode([begin, hi, think]) == "h<think>"
    assert tokenizer.token_bytes_of(begin) == b"<|begin|>"
    assert tokenizer.token_bytes_of(think) == b"<think>"
    assert begin in tokenizer.special_ids
    assert think not in tokenizer.special_ids


def test_added_tokens_count_as_vocabulary():
    tokenizer = Tokenizer(byte_level())
    think = tokenizer.backend.token_to_id("<think>")
    assert tokenizer.vocab_size == think + 1


def test_a_tokenizer_without_advice_has_none():
    tokenizer = Tokenizer(byte_level())
    assert (tokenizer.special_tokens, tokenizer.eos_ids) == ({}, frozenset())
    assert tokenizer.defaults == GenerationDefaults(None, None, None, None, None)
    advised = Tokenizer(
        byte_level(), special_tokens={"bos_token": "<s>"}, eos_ids=frozenset({7}), defaults=GenerationDefaults(0.5)
    )
    assert (advised.special_tokens, advised.eos_ids, advised.defaults.temperature) == ({"bos_token": "<s>"}, {7}, 0.5)


def test_the_limit_of_a_text_is_what_its_longest_tokens_could_hold():
    # Every token of this vocabulary has one character.
    tokenizer = Tokenizer(LibraryTokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")))
    for limit in (0, 3):
        with pytest.raises(ContextLengthExceeded) as caught:
            tokenizer.encode("a" * (limit + 1), add_special_tokens=False, max_model_len=limit, param="messages")
        error = caught.value
        assert (error.prompt_tokens, error.max_tokens, error.max_model_len, error.param) == (
            limit + 1,
            0,
            limit,
            "messages",
        )
    assert tokenizer.encode("a", add_special_tokens=False, max_model_len=1) == [0]
    assert tokenizer.encode("", add_special_tokens=False, max_model_len=0) == []


def test_a_vocabulary_without_tokens_refuses_long_texts_all_the_same():
    tokenizer = Tokenizer(LibraryTokenizer(models.BPE()))
    with pytest.raises(ContextLengthExceeded):
        tokenizer.encode("ab", add_special_tokens=False, max_model_len=1)


def test_a_lone_surrogate_is_refused_under_the_name_of_the_prompt():
    with pytest.raises(InvalidParameter) as caught:
        Tokenizer(byte_level()).encode("\udc00", add_special_tokens=False)
    assert caught.value.param == "prompt"


def test_texts_are_encoded_together_as_each_alone_and_cut_with_what_surrounds_them():
    tokenizer = Tokenizer(byte_level(adds_begin=True))
    texts = ["Hello world", "no", ""]
    params = ["input"] * 3
    begin = tokenizer.backend.token_to_id("<|begin|>")
    alone = [tokenizer.encode(text, add_special_tokens=True) for text in texts]
    longest = max(map(len, alone))
    for limit in (None, longest, longest + 1):
        assert tokenizer.encode_all(texts, params=params, max_tokens=limit) == alone
    cut = tokenizer.encode_all(texts, params=params, max_tokens=longest - 1)
    assert cut == [ids[: longest - 1] for ids in alone]
    assert tokenizer.encode_all(texts, params=params, max_tokens=1) == [[begin]] * 3
    with pytest.raises(InvalidParameter) as caught:
        tokenizer.encode_all(["a", "\ud800"], params=["input[0]", "input[1]"])
    assert caught.value.param == "input[1]"
