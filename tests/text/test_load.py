"""The tokenizer, its chat template and the author's sampling defaults, read from files."""

import json

import pytest

from service.errors import MalformedCheckpoint, MissingFile
from service.text.load import load_chat_template, load_tokenizer
from service.text.tokenizer import GenerationDefaults
from tests.text.small_tokenizers import byte_level

USER = [{"role": "user", "content": "hi"}]


@pytest.fixture
def folder(tmp_path):
    byte_level(adds_begin=True).save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def write(folder, name, content):
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))


def test_a_checkpoint_without_a_tokenizer_is_refused_with_the_setting_that_helps(tmp_path):
    with pytest.raises(MissingFile, match="TOKENIZER_URI"):
        load_tokenizer(tmp_path, "gs://bucket/model")


def test_a_sentencepiece_file_alone_is_refused_with_the_way_to_convert_it(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(b"spm")
    with pytest.raises(MissingFile, match="save_pretrained"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": 1}'])
def test_a_broken_tokenizer_file_is_named(tmp_path, content):
    write(tmp_path, "tokenizer.json", content)
    with pytest.raises(MalformedCheckpoint, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_special_tokens_are_read_as_text_or_as_object(folder):
    write(folder, "special_tokens_map.json", {"bos_token": "<|begin|>", "eos_token": "<|turn|>"})
    write(folder, "tokenizer_config.json", {"eos_token": {"content": "<|end|>"}, "pad_token": None})
    tokenizer = load_tokenizer(folder)
    assert tokenizer.special_tokens == {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    assert tokenizer.eos_ids == {tokenizer.backend.token_to_id("<|end|>")}


@pytest.mark.parametrize(("stated", "expected"), [(7, {7}), ([7, 9], {7, 9}), (None, set())])
def test_the_end_of_text_is_one_id_or_several(folder, stated, expected):
    write(folder, "generation_config.json", {"eos_token_id": stated})
    assert load_tokenizer(folder).eos_ids == expected


def test_the_end_of_text_of_config_json_counts_when_nothing_else_says(folder):
    write(folder, "config.json", {"eos_token_id": 5})
    assert load_tokenizer(folder).eos_ids == {5}


def test_the_authors_sampling_is_read(folder):
    write(folder, "generation_config.json", {"temperature": 0.6, "top_p": 1, "do_sample": True})
    assert load_tokenizer(folder).defaults == GenerationDefaults(temperature=0.6, top_p=1.0)


def test_no_sampling_means_temperature_zero(folder):
    write(folder, "generation_config.json", {"temperature": 0.6, "do_sample": False})
    assert load_tokenizer(folder).defaults.temperature == 0.0


@pytest.mark.parametrize(
    "content",
    ["[", "[1]", {"temperature": 3}, {"temperature": "1"}, {"top_p": 0}, {"top_k": 2.5}, {"eos_token_id": "</s>"}],
)
def test_a_broken_generation_config_is_named(folder, content):
    write(folder, "generation_config.json", content)
    with pytest.raises(MalformedCheckpoint, match=r"generation_config\.json"):
        load_tokenizer(folder)


def test_an_unserved_default_is_told_to_the_operator(folder, caplog):
    write(folder, "generation_config.json", {"num_beams": 4})
    load_tokenizer(folder)
    assert "num_beams = 4" in caplog.text


def test_every_number_of_the_authors_sampling_is_served(folder):
    numbers = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}
    write(folder, "generation_config.json", numbers)
    assert load_tokenizer(folder).defaults == GenerationDefaults(**numbers)
    write(folder, "generation_config.json", numbers | {"do_sample": False})
    assert load_tokenizer(folder).defaults == GenerationDefaults(0.0, 1.0, repetition_penalty=1.1)


def test_the_file_of_its_own_wins_over_the_tokenizers_configuration(tmp_path):
    assert load_chat_template(tmp_path, {}) is None
    write(tmp_path, "tokenizer_config.json", {"chat_template": "config"})
    assert load_chat_template(tmp_path, {}).render(USER) == "config"
    write(tmp_path, "chat_template.jinja", "own")
    assert load_chat_template(tmp_path, {}).render(USER) == "own"


def test_of_several_named_templates_the_default_is_taken(tmp_path):
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    write(tmp_path, "tokenizer_config.json", {"chat_template": named})
    assert load_chat_template(tmp_path, {}).render(USER) == "plain"


@pytest.mark.parametrize("stated", [7, [], [{"name": "a", "template": "x"}, {"name": "b", "template": "y"}], "{{"])
def test_a_broken_template_of_a_checkpoint_names_its_file(tmp_path, stated):
    write(tmp_path, "tokenizer_config.json", {"chat_template": stated})
    with pytest.raises(MalformedCheckpoint, match=r"gs://b/m: tokenizer_config\.json"):
        load_chat_template(tmp_path, {}, "gs://b/m")
