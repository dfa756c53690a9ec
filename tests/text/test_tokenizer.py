import json

import pytest

from service.errors import ContextLengthExceeded, InvalidParameter, MalformedCheckpoint, MissingFile
from service.text.tokenizer import GenerationDefaults, Tokenizer
from tests.text.small_tokenizers import byte_level, metaspace


@pytest.fixture
def folder(tmp_path):
    byte_level(adds_begin=True).save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def write(folder, name, content):
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))


def test_a_checkpoint_without_a_tokenizer_is_refused_with_the_setting_that_helps(tmp_path):
    with pytest.raises(MissingFile, match="TOKENIZER_URI"):
        Tokenizer.load(tmp_path, "gs://bucket/model")


def test_a_sentencepiece_file_alone_is_refused_with_the_way_to_convert_it(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(b"spm")
    with pytest.raises(MissingFile, match="save_pretrained"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": 1}'])
def test_a_broken_tokenizer_file_is_named(tmp_path, content):
    write(tmp_path, "tokenizer.json", content)
    with pytest.raises(MalformedCheckpoint, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)


def test_special_tokens_are_read_as_text_or_as_object(folder):
    write(folder, "special_tokens_map.json", {"bos_token": "<|begin|>", "eos_token": "<|turn|>"})
    write(folder, "tokenizer_config.json", {"eos_token": {"content": "<|end|>"}, "pad_token": None})
    tokenizer = Tokenizer.load(folder)
    assert tokenizer.special_tokens == {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    assert tokenizer.eos_ids == {tokenizer.backend.token_to_id("<|end|>")}


@pytest.mark.parametrize(("stated", "expected"), [(7, {7}), ([7, 9], {7, 9}), (None, set())])
def test_the_end_of_text_is_one_id_or_several(folder, stated, expected):
    write(folder, "generation_config.json", {"eos_token_id": stated})
    assert Tokenizer.load(folder).eos_ids == expected


def test_the_end_of_text_of_config_json_counts_when_nothing_else_says(folder):
    write(folder, "config.json", {"eos_token_id": 5})
    assert Tokenizer.load(folder).eos_ids == {5}


def test_the_authors_sampling_is_read(folder):
    write(folder, "generation_config.json", {"temperature": 0.6, "top_p": 1, "do_sample": True})
    assert Tokenizer.load(folder).defaults == GenerationDefaults(temperature=0.6, top_p=1.0)


def test_no_sampling_means_temperature_zero(folder):
    write(folder, "generation_config.json", {"temperature": 0.6, "do_sample": False})
    assert Tokenizer.load(folder).defaults.temperature == 0.0


@pytest.mark.parametrize(
    "content",
    ["[", "[1]", {"temperature": 3}, {"temperature": "1"}, {"top_p": 0}, {"top_k": 2.5}, {"eos_token_id": "</s>"}],
)
def test_a_broken_generation_config_is_named(folder, content):
    write(folder, "generation_config.json", content)
    with pytest.raises(MalformedCheckpoint, match=r"generation_config\.json"):
        Tokenizer.load(folder)


def test_an_unserved_default_is_told_to_the_operator(folder, caplog):
    write(folder, "generation_config.json", {"num_beams": 4})
    Tokenizer.load(folder)
    assert "num_beams = 4" in caplog.text


def test_every_number_of_the_authors_sampling_is_served(folder):
    numbers = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}
    write(folder, "generation_config.json", numbers)
    assert Tokenizer.load(folder).defaults == GenerationDefaults(**numbers)
    write(folder, "generation_config.json", numbers | {"do_sample": False})
    assert Tokenizer.load(folder).defaults == GenerationDefaults(0.0, 1.0, repetition_penalty=1.1)


def test_a_token_has_bytes_of_its_own():
    tokenizer = Tokenizer(byte_level())
    ids = tokenizer.encode("né🌍", add_special_tokens=False)
    assert b"".join(tokenizer.token_bytes_of(token_id) for token_id in ids) == "né🌍".encode()
    assert tokenizer.token_bytes_of(tokenizer.backend.token_to_id("<|end|>")) == b"<|end|>"
    assert tokenizer.token_bytes_of(10**6) == b""


def test_a_truncation_saved_after_training_does_not_cut_prompts(tmp_path):
    backend = byte_level()
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer.load(tmp_path)
    text = "one two three four five six seven"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=True)) == text


def test_special_tokens_are_added_on_demand_only(folder):
    tokenizer = Tokenizer.load(folder)
    begin = tokenizer.backend.token_to_id("<|begin|>")
    bare = tokenizer.encode("hi", add_special_tokens=False)
    assert tokenizer.encode("hi", add_special_tokens=True) == [begin, *bare]
    assert max(bare) < tokenizer.vocab_size


def test_half_a_surrogate_pair_is_refused():
    with pytest.raises(InvalidParameter) as caught:
        Tokenizer(metaspace()).encode("a\ud800", add_special_tokens=False, param="messages")
    assert caught.value.param == "messages"


def test_a_text_that_cannot_fit_is_refused_before_it_is_encoded():
    tokenizer = Tokenizer(byte_level())
    tokenizer.backend = None  # to touch it would fail
    tokenizer._longest_token_chars = 10
    with pytest.raises(ContextLengthExceeded, match="at least 4000 tokens") as caught:
        tokenizer.encode("a" * 40_000, add_special_tokens=False, limit_tokens=100)
    assert caught.value.param == "prompt"


def test_a_text_that_may_fit_is_encoded():
    tokenizer = Tokenizer(byte_level())
    assert tokenizer.encode("Hello world", add_special_tokens=False, limit_tokens=8)
