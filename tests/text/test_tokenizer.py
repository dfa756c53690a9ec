import pytest

from service.errors import ContextLengthExceeded, InvalidParameter
from service.text.tokenizer import Tokenizer
from tests.text.small_tokenizers import byte_level, metaspace


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


def test_special_tokens_are_added_on_demand_only():
    tokenizer = Tokenizer(byte_level(adds_begin=True))
    begin = tokenizer.backend.token_to_id("<|begin|>")
    bare = tokenizer.encode("hi", add_special_tokens=False)
    assert tokenizer.encode("hi", add_special_tokens=True) == [begin, *bare]
    assert max(bare) < tokenizer.vocab_size


def test_a_truncation_saved_after_training_does_not_cut_prompts():
    backend = byte_level()
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    tokenizer = Tokenizer(backend)
    text = "one two three four five six seven"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=True)) == text


def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded():
    tokenizer = Tokenizer(byte_level())
    longest = max(map(len, tokenizer.backend.get_vocab(with_added_tokens=True)))
    text = "a" * (101 * longest)
    for _ in range(2):
        with pytest.raises(ContextLengthExceeded, match="at least 101 tokens") as caught:
            tokenizer.encode(text, add_special_tokens=False, limit_tokens=100)
        assert caught.value.param == "prompt"
        tokenizer.backend = None  # the second time, nothing can be encoded
    with pytest.raises(AttributeError):
        tokenizer.encode(text[:-1], add_special_tokens=False, limit_tokens=100)


def test_a_text_that_may_fit_is_encoded():
    tokenizer = Tokenizer(byte_level())
    assert tokenizer.encode("Hello world", add_special_tokens=False, limit_tokens=8)
