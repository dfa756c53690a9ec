"""MODELS_CONFIG: its meaning, and the message for each mistake in it."""

import pytest

from service.catalogue.described import read_models
from service.catalogue.entry import ModelEntry
from service.errors import SettingsError
from service.settings import Settings
from service.text.generation_defaults import GenerationDefaults

WHOLE = """\
models:
  - name: org/chat
    aliases: [chat, gpt-4]
    uri: hf://org/chat
    revision: v2
    tokenizer: gs://bucket/tokenizer
    adapter: gs://bucket/adapter
    dtype: float32
    quantization: int8
    kv_dtype: fp8
    max_model_len: 512
    defaults:
      temperature: 0
      top_p: 0.9
      top_k: -1
      min_p: 0.1
      repetition_penalty: 1.1
      max_tokens: 64
    preload: true
    keep_loaded: true
    memory: 0.5
  - name: run
    pin: latest
  - name: kept
    uri: gs://bucket/kept
    generations: {model.safetensors: 1712345678901234, config.json: 1}
  - name: followed
    uri: gs://bucket/run
    pin: latest
"""


def test_every_key_is_read():
    chat, run, kept, followed = read_models(WHOLE, "models.yaml")
    assert chat == ModelEntry(
        name="org/chat",
        aliases=("chat", "gpt-4"),
        uri="hf://org/chat@v2",
        tokenizer_uri="gs://bucket/tokenizer",
        adapter_uri="gs://bucket/adapter",
        dtype="float32",
        quantization="int8",
        kv_dtype="fp8",
        max_model_len=512,
        defaults=GenerationDefaults(0.0, 0.9, -1, 0.1, 1.1, 64),
        is_preloaded=True,
        keeps_loaded=True,
        memory_share=0.5,
    )
    assert run == ModelEntry(name="run", uri="", pin="latest")
    pins = {"model.safetensors": 1712345678901234, "config.json": 1}
    assert followed == ModelEntry(name="followed", uri="gs://bucket/run", pin="latest", is_run=True)
    assert kept == ModelEntry(name="kept", uri="gs://bucket/kept", generations=pins)


def test_a_model_is_loaded_with_its_own_settings_and_else_with_those_of_the_process():
    process = Settings(gcs_bucket="bucket", gcs_model_prefix="models", dtype="bfloat16", kv_dtype="int8", port=7)
    chat, run, *_ = [entry.settings(process) for entry in read_models(WHOLE, "models.yaml")]
    assert (chat.model_uri, chat.model_names, chat.has_catalogue) == (
        "hf://org/chat@v2",
        ("org/chat", "chat", "gpt-4"),
        False,
    )
    assert (chat.dtype, chat.quantization, chat.kv_dtype, chat.max_model_len, chat.port) == (
        "float32",
        "int8",
        "fp8",
        512,
        7,
    )
    assert (run.dtype, run.quantization, run.kv_dtype, run.max_model_len) == ("bfloat16", "none", "int8", None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("models: [", "is not YAML"),
        ("", "single key, 'models'"),
        ("- name: a", "line 1: should have a single key"),
        ("models: {a: b}", "single key, 'models'"),
        ("models: []\nmodels: []", "line 2: the key 'models' is duplicate"),
        ("models:\n - a", "line 2: a model is a mapping"),
        ("models:\n - uri: gs://bucket/a", "line 2: name: Field required"),
        ("models:\n - name: a\n   temprature: 1", "line 3: temprature: Extra inputs"),
        ("models:\n - name: a\n   name: b", "line 3: the key 'name' is duplicate"),
        ("models:\n - name: a\n   preload: 1", "line 3: preload: "),
        ("models:\n - name: a\n   pin: true", "line 3: pin: .*'step'.*'latest'"),
        ("models:\n - name: a\n   max_model_len: .inf", "line 3: max_model_len"),
        ("models:\n - name: a\n   memory: 1.5", "line 3: memory: "),
        ("models:\n - name: a\n - name: a", "line 3: the name 'a' is used twice"),
        ("models:\n - name: a\n - name: b\n   aliases: [a]", "line 3: the name 'a' is used twice"),
        ("models:\n - name: a\n   aliases: [a]", "line 2: the name 'a' is used twice"),
        ("models:\n - name: a/b-c\n - name: a-b/c", "line 3: the name 'a-b/c' and 'a/b-c' are the same folder"),
        ("models:\n - name: ../a", "line 2: the name '../a' has an empty part, '.' or '..'"),
        ("models:\n - name: a\n   uri: s3://b/a", "line 3: .*'s3://' is not supported"),
        ("models:\n - name: a\n   uri: gs://bucket/a\n   revision: v1", "line 3: .*needs an hf:// address"),
        ("models:\n - name: a\n   uri: hf://b/a@v1\n   revision: v2", "contradicts 'revision: v2'"),
        ("models:\n - name: a\n   revision: v2", "line 3: revision: needs a 'uri'"),
        ("models:\n - name: a\n   uri: hf://b/a\n   pin: latest", "line 4: pin: applies to Levanter runs"),
        (
            "models:\n - name: a\n   uri: gs://bucket/a\n   pin: step\n   generations: {b: 1}",
            "line 4: pin: contradicts 'generations'",
        ),
        ("models:\n - name: a\n   quantization: int3", "line 3: quantization: .*'none', 'int8', 'fp8' or 'int4'"),
        ("models:\n - name: a\n   kv_dtype: int4", "line 3: kv_dtype: "),
        ("models:\n - name: a\n   defaults: 0.7", "line 3: defaults: "),
        ("models:\n - name: a\n   defaults:\n    top_p: 0.5\n    temperature: 3", "line 5: defaults.temperature: "),
        ("models:\n - name: a\n   defaults:\n    top_p: 0", "line 4: defaults.top_p: "),
        ("models:\n - name: a\n   defaults:\n    top_p: .nan", "line 4: defaults.top_p: "),
        ("models:\n - name: a\n   defaults:\n    top_k: 0.5", "line 4: defaults.top_k: "),
        ("models:\n - name: a\n   defaults:\n    max_tokens: 0", "line 4: defaults.max_tokens: "),
        ("models:\n - name: a\n   defaults:\n    n: 2", "line 4: defaults.n: Extra inputs"),
        ("models:\n - name: a\n   defaults:\n    n: 2\n    n: 3", "line 5: the key 'n' is duplicate"),
        (
            "models:\n - name: a\n   max_model_len: 64\n   defaults: {max_tokens: 64}",
            "line 4: defaults: has max_tokens 64, which leaves no room for a prompt in max_model_len 64",
        ),
        ("models:\n - name: a\n   uri: /a\n   generations: {b: 1}", "line 4: generations: need a 'uri' of a bucket"),
        ("models:\n - name: a\n   generations: {b: 1}", "line 3: generations: need a 'uri' of a bucket"),
        ("models:\n - name: a\n   uri: gs://bucket/a\n   generations:\n    b: 0", "line 5: generations.b: "),
        ("models:\n - name: a\n   uri: gs://bucket/a\n   generations: 1", "line 4: generations: "),
        ("models:\n - ? [a]\n   : b", "line 2: keys must be scalars"),
        ("models:\n - !!python/object/apply:os.system [x]", "is not YAML|a mapping"),
        ("models:\n - name: &a [*a]", "name: "),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text, message):
    with pytest.raises(SettingsError, match=f"MODELS_CONFIG: models.yaml.*{message}"):
        read_models(text, "models.yaml")
