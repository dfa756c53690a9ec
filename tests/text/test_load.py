"""The tokenizer, its chat template and the author's sampling defaults, read from files."""

import json
import re

import pytest

from service.errors import InvalidParameter, MalformedCheckpoint, MissingFile
from service.text.generation_defaults import GenerationDefaults
from service.text.load import load_chat_template, load_tokenizer
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


@pytest.mark.parametrize("name", ["tekken.json", "tiktoken.model"])
def test_another_format_alone_is_refused_with_the_way_to_convert_it(tmp_path, name):
    write(tmp_path, name, "{}")
    with pytest.raises(MissingFile, match=f"there is {name}, .*save_pretrained"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("content", [b"", b"spm", b"IQ== 0\nIg== 1\n", b"\x0a\xff", b"\x0a\x03\x0a\x01\xff", b"\x0a"])
def test_a_broken_sentencepiece_model_is_named(tmp_path, content):
    (tmp_path / "tokenizer.model").write_bytes(content)
    with pytest.raises(MalformedCheckpoint, match=r"tokenizer\.model: is not a SentencePiece model"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": 1}'])
def test_a_broken_tokenizer_file_is_named(tmp_path, content):
    write(tmp_path, "tokenizer.json", content)
    with pytest.raises(MalformedCheckpoint, match=r"tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_special_tokens_are_read_as_text_or_as_object(folder):
    older = {"bos_token": "<|begin|>", "eos_token": {"content": "<|end|>", "lstrip": False}}
    write(folder, "special_tokens_map.json", older)
    config = {"eos_token": {"content": "<|turn|>"}, "pad_token": None}
    write(folder, "tokenizer_config.json", config)
    tokenizer = load_tokenizer(folder)
    assert tokenizer.special_tokens == {"bos_token": "<|begin|>", "eos_token": "<|end|>"}
    write(folder, "tokenizer_config.json", config | {"added_tokens_decoder": {}})
    assert load_tokenizer(folder).special_tokens == {"eos_token": "<|turn|>"}
    assert tokenizer.eos_ids == {tokenizer.backend.token_to_id("<|end|>")}


@pytest.mark.parametrize(("stated", "expected"), [(7, {7}), ([7, 9], {7, 9}), (None, set())])
def test_the_end_of_text_is_one_id_or_several(folder, stated, expected):
    write(folder, "generation_config.json", {"eos_token_id": stated})
    assert load_tokenizer(folder).eos_ids == expected


def test_the_end_of_text_of_config_json_counts_when_nothing_else_says(folder):
    for generation in ({}, {"eos_token_id": None}):
        write(folder, "generation_config.json", generation)
        for config in ({"eos_token_id": 5}, {"text_config": {"eos_token_id": [5]}}):
            assert load_tokenizer(folder, config=config).eos_ids == {5}


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
    assert load_chat_template(tmp_path, {}, is_trusted=True) is None
    write(tmp_path, "tokenizer_config.json", {"chat_template": "config"})
    assert load_chat_template(tmp_path, {}, is_trusted=True).render(USER) == "config"
    write(tmp_path, "chat_template.jinja", "own")
    assert load_chat_template(tmp_path, {}, is_trusted=True).render(USER) == "own"


def test_of_several_named_templates_the_default_is_taken(tmp_path):
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    write(tmp_path, "tokenizer_config.json", {"chat_template": named})
    assert load_chat_template(tmp_path, {}, is_trusted=True).render(USER) == "plain"


def test_without_a_default_template_chats_of_the_named_kinds_are_served(tmp_path):
    named = [{"name": "tool_use", "template": "{{ tools }}"}, {"name": "rag", "template": "{{ documents }}"}]
    write(tmp_path, "tokenizer_config.json", {"chat_template": named})
    template = load_chat_template(tmp_path, {}, is_trusted=True)
    assert template.chosen(has_tools=True, has_documents=False).source == "{{ tools }}"
    assert template.chosen(has_tools=False, has_documents=True).source == "{{ documents }}"
    with pytest.raises(InvalidParameter, match="only for chats with tools or documents"):
        template.chosen(has_tools=False, has_documents=False).render(USER)


def test_templates_in_files_of_their_own_have_their_names(tmp_path):
    write(tmp_path, "tokenizer_config.json", {"chat_template": [{"name": "rag", "template": "old"}]})
    write(tmp_path, "chat_template.jinja", "plain")
    (tmp_path / "additional_chat_templates").mkdir()
    write(tmp_path / "additional_chat_templates", "tool_use.jinja", "tools")
    template = load_chat_template(tmp_path, {}, is_trusted=True)
    choices = [template.chosen(has_tools=tools, has_documents=not tools).source for tools in (True, False)]
    assert (template.source, choices) == ("plain", ["tools", "plain"])


@pytest.mark.parametrize("stated", [7, [], [{"name": "a", "template": "x"}, {"name": "b", "template": "y"}], "{{"])
def test_a_broken_template_of_a_checkpoint_names_its_file(tmp_path, stated):
    write(tmp_path, "tokenizer_config.json", {"chat_template": stated})
    with pytest.raises(MalformedCheckpoint, match=r"gs://b/m: tokenizer_config\.json"):
        load_chat_template(tmp_path, {}, "gs://b/m", is_trusted=True)


@pytest.mark.parametrize("name", ["bos", "eos", "pad", "unk", "sep", "cls", "mask"])
def test_every_special_token_of_transformers_is_read(folder, name):
    write(
        folder, "tokenizer_config.json", {f"{name}_token": "<|end|>", "padding_side": "left", "image_token": "<|turn|>"}
    )
    assert load_tokenizer(folder).special_tokens == {f"{name}_token": "<|end|>", "image_token": "<|turn|>"}


def test_a_special_token_that_is_no_text_is_left_out(folder):
    write(folder, "tokenizer_config.json", {"bos_token": 7, "eos_token": {"content": 7}, "unk_token": {}})
    assert load_tokenizer(folder).special_tokens == {}


def test_the_end_of_text_is_what_is_stated_and_the_named_token(folder):
    write(folder, "special_tokens_map.json", {"eos_token": "<|end|>"})
    write(folder, "generation_config.json", {"eos_token_id": [5, 0]})
    tokenizer = load_tokenizer(folder, config={"eos_token_id": 9})
    assert tokenizer.eos_ids == {0, 5, tokenizer.backend.token_to_id("<|end|>")}


def test_a_named_token_that_the_tokenizer_lacks_is_added_as_in_transformers(folder):
    num_tokens = load_tokenizer(folder).vocab_size
    write(folder, "special_tokens_map.json", {"eos_token": "<|nowhere|>"})
    assert load_tokenizer(folder).eos_ids == {num_tokens}


@pytest.mark.parametrize("stated", [-1, [5, -1], True, [True], 5.0, "5", [None], {}])
def test_an_end_of_text_that_is_no_id_names_its_file_and_place(folder, stated):
    write(folder, "generation_config.json", {"eos_token_id": stated})
    with pytest.raises(MalformedCheckpoint, match=r"gs://b/m: generation_config\.json") as caught:
        load_tokenizer(folder, "gs://b/m")
    assert repr(stated) in str(caught.value)
    (folder / "generation_config.json").unlink()
    with pytest.raises(MalformedCheckpoint, match=r"gs://b/m: config\.json"):
        load_tokenizer(folder, "gs://b/m", config={"eos_token_id": stated})


RANGES = {"temperature": (0, 2), "top_p": (1e-9, 1), "min_p": (0, 1), "repetition_penalty": (0.01, 10)}


@pytest.mark.parametrize("name", RANGES)
def test_a_default_is_taken_within_its_range(folder, name):
    for value in RANGES[name]:
        write(folder, "generation_config.json", {name: value})
        got = getattr(load_tokenizer(folder).defaults, name)
        assert (got, type(got)) == (value, float)
    lowest, highest = RANGES[name]
    for value in (lowest - 0.005, highest + 0.005, True, str(lowest), [lowest]):
        write(folder, "generation_config.json", {name: value})
        reason = re.escape(f"gs://b/m: generation_config.json: {name} is {value!r}, which is out of range")
        with pytest.raises(MalformedCheckpoint, match=reason):
            load_tokenizer(folder, "gs://b/m")


def test_the_likeliest_tokens_are_counted_in_31_bits(folder):
    for value in (-1, 0, 2**31 - 1):
        write(folder, "generation_config.json", {"top_k": value})
        assert load_tokenizer(folder).defaults == GenerationDefaults(top_k=value)
    for value in (-2, 2**31, True, "1"):
        write(folder, "generation_config.json", {"top_k": value})
        with pytest.raises(MalformedCheckpoint, match=rf"gs://b/m: generation_config\.json: top_k is {value!r}"):
            load_tokenizer(folder, "gs://b/m")


def test_without_a_generation_config_nothing_is_recommended(folder):
    assert load_tokenizer(folder).defaults == GenerationDefaults(None, None, None, None, None)
    write(folder, "generation_config.json", {"do_sample": False})
    assert load_tokenizer(folder).defaults == GenerationDefaults(temperature=0.0, top_p=1.0)


@pytest.mark.parametrize("name", ["num_beams", "typical_p"])
def test_a_default_that_has_no_effect_is_not_logged(folder, caplog, name):
    for value in (1, None):
        write(folder, "generation_config.json", {name: value})
        load_tokenizer(folder)
    assert caplog.text == ""
    write(folder, "generation_config.json", {name: 0.5})
    load_tokenizer(folder)
    assert f"{name} = 0.5" in caplog.text


def test_a_missing_tokenizer_is_named_with_its_place(tmp_path):
    with pytest.raises(MissingFile, match="gs://bucket/model"):
        load_tokenizer(tmp_path, "gs://bucket/model")
    with pytest.raises(MissingFile, match=str(tmp_path)):
        load_tokenizer(tmp_path)


def test_a_broken_tokenizer_is_named_with_its_place(tmp_path):
    write(tmp_path, "tokenizer.json", "{")
    with pytest.raises(MalformedCheckpoint, match=r"gs://bucket/model: tokenizer\.json"):
        load_tokenizer(tmp_path, "gs://bucket/model")


@pytest.mark.parametrize("name", ["special_tokens_map", "tokenizer_config", "generation_config", "added_tokens"])
@pytest.mark.parametrize("content", ["{", "7", "[" * 100_000])
def test_a_broken_file_beside_the_tokenizer_is_named_with_its_place(folder, name, content):
    write(folder, f"{name}.json", content)
    with pytest.raises(MalformedCheckpoint, match=rf"gs://b/m: {name}\.json"):
        load_tokenizer(folder, "gs://b/m")


def test_files_are_read_as_utf8(folder):
    text = '{"bos_token": "é"}'
    (folder / "tokenizer_config.json").write_bytes(text.encode())
    assert load_tokenizer(folder).special_tokens == {"bos_token": "é"}
    (folder / "chat_template.jinja").write_bytes("é".encode())
    assert load_chat_template(folder, {}, is_trusted=True).render(USER) == "é"


def test_a_template_that_is_no_text_is_named_with_its_place(tmp_path):
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(MalformedCheckpoint, match=r"gs://b/m: chat_template\.jinja"):
        load_chat_template(tmp_path, {}, "gs://b/m", is_trusted=True)
    (tmp_path / "chat_template.jinja").write_text("{% for %}")
    with pytest.raises(MalformedCheckpoint, match=rf"{tmp_path}: chat_template\.jinja"):
        load_chat_template(tmp_path, {}, is_trusted=True)


def test_a_template_in_a_json_file_of_its_own_wins_over_the_tokenizers_configuration(tmp_path):
    write(tmp_path, "tokenizer_config.json", {"chat_template": "config"})
    write(tmp_path, "chat_template.json", {"chat_template": "own"})
    assert load_chat_template(tmp_path, {}, is_trusted=True).render(USER) == "own"
    write(tmp_path, "chat_template.json", {"chat_template": 7})
    with pytest.raises(MalformedCheckpoint, match=r"gs://b/m: chat_template\.json"):
        load_chat_template(tmp_path, {}, "gs://b/m", is_trusted=True)
    write(tmp_path, "chat_template.json", {"chat_template": None})
    assert load_chat_template(tmp_path, {}, is_trusted=True).render(USER) == "config"


@pytest.mark.parametrize("file", ["chat_template.jinja", "tokenizer_config.json"])
def test_a_template_may_write_the_special_tokens(tmp_path, file):
    template = "{{ bos_token }}!"
    write(tmp_path, file, template if file.endswith("jinja") else {"chat_template": template})
    assert load_chat_template(tmp_path, {"bos_token": "<s>"}, is_trusted=True).render(USER) == "<s>!"


@pytest.mark.parametrize(
    "named",
    [
        [{"name": "default", "template": "it"}],
        [{"name": "tool_use", "template": "it"}],
        [{"name": "default", "template": "it"}, "junk"],
        [{"name": "tool_use", "template": "other"}, {"name": "default", "template": "it"}],
    ],
)
def test_a_list_of_templates_has_a_default_or_only_one(tmp_path, named):
    write(tmp_path, "tokenizer_config.json", {"chat_template": named})
    assert load_chat_template(tmp_path, {}, is_trusted=True).render(USER) == "it"


def test_a_tokenizer_that_another_model_has_is_taken_over_as_it_is(folder):
    cut = byte_level(adds_begin=True)
    cut.enable_truncation(2)
    cut.enable_padding()
    cut.save(str(folder / "tokenizer.json"))
    parsed = []

    def parse(files):
        parsed.append(files.content)
        return first.backend

    first = load_tokenizer(folder)
    assert load_tokenizer(folder, parse=parse).backend is first.backend
    assert parsed == [(folder / "tokenizer.json").read_bytes()]
    assert len(first.encode("a long text", add_special_tokens=False)) > 2


def write_pair_of_files(folder, backend):
    model = json.loads(backend.to_str())
    added = {token["content"]: token["id"] for token in model["added_tokens"]}
    vocab = {token: token_id for token, token_id in model["model"]["vocab"].items() if token not in added}
    write(folder, "vocab.json", {token: at for at, token in enumerate(sorted(vocab, key=vocab.__getitem__))})
    write(folder, "merges.txt", "#version: 0.2\n" + "\n".join(" ".join(pair) for pair in model["model"]["merges"]))
    write(
        folder, "added_tokens.json", {"<|endoftext|>": len(vocab), "<|en|>": len(vocab) + 1, "<|0.00|>": len(vocab) + 2}
    )


def test_an_old_export_with_vocabulary_and_merges_encodes_as_its_tokenizer_would(tmp_path):
    backend = byte_level()
    write_pair_of_files(tmp_path, backend)
    loaded = load_tokenizer(tmp_path)
    text = "Hello world, Привет 🌍"
    ids = loaded.encode(text, add_special_tokens=False)
    assert [loaded.backend.id_to_token(token_id) for token_id in ids] == backend.encode(text).tokens
    assert loaded.decode(ids) == text
    control, time = (loaded.backend.token_to_id(token) for token in ("<|en|>", "<|0.00|>"))
    assert control in loaded.special_ids
    assert time not in loaded.special_ids


def test_added_tokens_that_do_not_follow_the_vocabulary_are_refused(tmp_path):
    write_pair_of_files(tmp_path, byte_level())
    write(tmp_path, "added_tokens.json", {"<|en|>": 7000})
    with pytest.raises(MalformedCheckpoint, match=r"added_tokens\.json"):
        load_tokenizer(tmp_path)


def test_merges_of_tokens_that_the_vocabulary_lacks_are_refused(tmp_path):
    write_pair_of_files(tmp_path, byte_level())
    write(tmp_path, "merges.txt", "not there")
    with pytest.raises(MalformedCheckpoint, match=r"merges\.txt"):
        load_tokenizer(tmp_path)
