"""Folders of twenty classes of tokenizers, and folders as people leave them, against transformers' AutoTokenizer."""

import hashlib
import json
import shutil
import zipfile
from functools import cache
from pathlib import Path

import pytest

from service.text.json_file import read_json
from service.text.load import load_tokenizer
from tests.text.tokenizer_strings import strings

ARCHIVE = Path(__file__).parent / "references" / "tokenizers.zip"
NUM_STRINGS = 2000


@cache
def references():
    with zipfile.ZipFile(ARCHIVE) as archive:
        return json.loads(archive.read("expected.json"))


@pytest.fixture
def folder(tmp_path):
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(tmp_path)
    return tmp_path


def load(folder):
    return load_tokenizer(folder, config=read_json(folder, "config.json", str(folder)))


each_tokenizer = pytest.mark.parametrize("name", references())


@each_tokenizer
def test_a_tokenizer_is_that_of_transformers(folder, name):
    expected, tokenizer = references()[name], load(folder / name)
    assert tokenizer.special_tokens == expected["names"]
    assert tokenizer.vocab_size == expected["size"]
    texts = list(strings(NUM_STRINGS))[: len(expected["bare"])]
    for text, bare, whole in zip(texts, expected["bare"], expected["whole"], strict=True):
        assert tokenizer.encode(text, add_special_tokens=False) == bare, text
        assert tokenizer.encode(text, add_special_tokens=True) == whole, text


@pytest.mark.slow
@each_tokenizer
def test_two_thousand_strings_are_encoded_and_decoded_as_by_transformers(folder, name):
    expected, tokenizer = references()[name], load(folder / name)
    texts = list(strings(NUM_STRINGS))
    bare, whole = ([tokenizer.encode(text, add_special_tokens=adds) for text in texts] for adds in (False, True))
    assert digest([bare, whole]) == expected["ids"]
    assert digest(list(map(tokenizer.decode, whole))) == expected["decoded"]
    if expected["shown"] is not None:
        shown = [tokenizer.backend.decode(ids, skip_special_tokens=False) for ids in bare]
        assert digest(shown) == expected["shown"]


def test_what_a_configuration_changes_changes_as_in_transformers(folder, tmp_path_factory):
    given = json.loads(ARCHIVE.with_name("tokenizer_options.json").read_text())
    wrong = []
    for case in given["cases"]:
        changed = tmp_path_factory.mktemp("changed") / case["name"]
        shutil.copytree(folder / case["name"], changed)
        write(changed, *case["change"])
        tokenizer = load(changed)
        ids = [[tokenizer.encode(text, add_special_tokens=adds) for text in given["texts"]] for adds in (False, True)]
        shown = [tokenizer.backend.decode(bare, skip_special_tokens=True) for bare in ids[0]]
        if (ids, shown, tokenizer.special_tokens.get("eos_token")) != (case["ids"], case["shown"], case["end"]):
            wrong.append((case["name"], *case["change"]))
    assert not wrong


def write(folder, file, key, value):
    path = folder / file
    values = json.loads(path.read_text()) if path.exists() else {}
    values.pop(key, None)
    path.write_text(json.dumps(values if value is None else {**values, key: value}))


def digest(value):
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()
