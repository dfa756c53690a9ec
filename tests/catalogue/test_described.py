"""MODELS_CONFIG: its meaning, and the message for each mistake in it."""

import pytest

from service.catalogue.described import read_models
from service.catalogue.entry import ModelEntry
from service.errors import SettingsError

WHOLE = """\
models:
  - name: org/chat
    aliases: [chat, gpt-4]
    uri: hf://org/chat
    revision: v2
    tokenizer: gs://bucket/tokenizer
    dtype: float32
    max_model_len: 512
    preload: true
    keep_loaded: true
    memory: 0.5
  - name: run
    pin: latest
"""


def test_every_key_is_read():
    chat, run = read_models(WHOLE, "models.yaml")
    assert chat == ModelEntry(
        name="org/chat",
        aliases=("chat", "gpt-4"),
        uri="hf://org/chat@v2",
        tokenizer_uri="gs://bucket/tokenizer",
        dtype="float32",
        max_model_len=512,
        is_preloaded=True,
        keeps_loaded=True,
        memory_share=0.5,
    )
    assert run == ModelEntry(name="run", uri="", pin="latest")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models: [", "is not YAML"),
        ("", "one key, 'models'"),
        ("- name: a", "line 1: should hold one key"),
        ("models: {a: b}", "one key, 'models'"),
        ("models: []\nmodels: []", "line 2: the key 'models' is there twice"),
        ("models:\n - a", "line 2: a model is a mapping"),
        ("models:\n - uri: gs://bucket/a", "line 2: name: Field required"),
        ("models:\n - name: a\n   temprature: 1", "line 3: temprature: Extra inputs"),
        ("models:\n - name: a\n   name: b", "line 3: the key 'name' is there twice"),
        ("models:\n - name: a\n   preload: 1", "line 3: preload: "),
        ("models:\n - name: a\n   pin: true", "line 3: pin: .*'step'.*'latest'"),
        ("models:\n - name: a\n   max_model_len: .inf", "line 3: max_model_len"),
        ("models:\n - name: a\n   memory: 1.5", "line 3: memory: "),
        ("models:\n - name: a\n - name: a", "line 3: the name 'a' is there twice"),
        ("models:\n - name: a\n - name: b\n   aliases: [a]", "line 3: the name 'a' is there twice"),
        ("models:\n - name: a\n   aliases: [a]", "line 2: the name 'a' is there twice"),
        ("models:\n - name: a/b-c\n - name: a-b/c", "line 3: the name 'a-b/c' and 'a/b-c' are the same folder"),
        ("models:\n - name: ../a", "line 2: the name '../a' has an empty part, '.' or '..'"),
        ("models:\n - name: a\n   uri: s3://b/a", "line 3: .*'s3://' is not supported"),
        ("models:\n - name: a\n   uri: gs://bucket/a\n   revision: v1", "line 3: .*belongs to an hf:// address"),
        ("models:\n - name: a\n   uri: hf://b/a@v1\n   revision: v2", "contradicts 'revision: v2'"),
        ("models:\n - name: a\n   revision: v2", "line 2: revision: belongs to a 'uri'"),
        ("models:\n - name: a\n   uri: gs://bucket/a\n   pin: latest", "line 3: pin: 'latest' follows the listing"),
        ("models:\n - !!python/object/apply:os.system [x]", "is not YAML|a mapping"),
        ("models:\n - name: &a [*a]", "name: "),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text, message):
    with pytest.raises(SettingsError, match=f"MODELS_CONFIG: models.yaml.*{message}"):
        read_models(text, "models.yaml")
