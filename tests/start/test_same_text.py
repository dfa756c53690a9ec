"""A checkpoint's tokenizer, ends and templates are the same from a folder, a bucket, its cache, and a second start."""

import json
import random
import shutil

import pytest

from service.observability.metrics import Metrics
from service.settings import Settings
from service.start.context import StartContext
from service.start.discover import locate_checkpoint
from service.start.progress import StartProgress
from service.start.tasks import load_text, pull_tokenizer_files
from tests.served import DEMO

# What a checkpoint may have beside its tokenizer.json, each in a file of its own.
PARTS = {
    "generation_config.json": {"eos_token_id": [7], "temperature": 0.25},
    "special_tokens_map.json": {"eos_token": "<|later|>", "image_token": "<|image|>"},
    "added_tokens.json": {"<|later|>": 3072},
    "chat_template.jinja": "own{{ eos_token }}",
    "chat_template.json": {"chat_template": "nested"},
    "additional_chat_templates/tool_use.jinja": "{{ tools }}",
    "additional_chat_templates/rag.jinja": "{{ documents }}",
    "tokenizer_config.json": {
        "chat_template": [
            {"name": "default", "template": "plain"},
            {"name": "tool_use", "template": "with {{ tools }}"},
        ],
        "bos_token": "<|begin|>",
        "added_tokens_decoder": {"3072": {"content": "<|config|>", "special": True}},
    },
    "config.json": {"eos_token_id": [9, 11]},
}


def draw(folder, seed):
    """Write a checkpoint with some of the parts; the first one has its ends in config.json alone."""
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"not read here")
    for name in ("tokenizer.json", "config.json"):
        shutil.copy(DEMO / name, folder / name)
    drawn = random.Random(seed)
    chosen = ["config.json"] if seed == 0 else [name for name in PARTS if drawn.random() < 0.5]
    if any("additional" in name for name in chosen):  # beside a default one
        chosen.append("chat_template.jinja")
    for name in chosen:
        content = PARTS[name]
        if name == "config.json":
            content = json.loads((DEMO / name).read_text()) | content
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


def context_of(**settings):
    return StartContext(Settings(**settings), Metrics(), StartProgress(Metrics()))


def text_of(context):
    located = locate_checkpoint(context)
    text = load_text(context, located, pull_tokenizer_files(context, located))
    tokenizer, template = text.tokenizer, text.chat_template
    chats = [] if template is None else [
        template.chosen(has_tools=tools, has_documents=documents).source
        for tools, documents in ((False, False), (True, False), (False, True))
    ]  # fmt: skip
    facts = tokenizer.special_tokens, tokenizer.eos_ids, tokenizer.num_rows, tokenizer.defaults, text.generation
    return *facts, tokenizer.backend.to_str(), chats


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 8))])
def test_the_same_files_mean_the_same_wherever_they_lie(gcs_bucket, tmp_path, seed):
    folder = draw(tmp_path / "model", seed)
    gcs_bucket.upload_directory(folder, "model")
    expected = text_of(context_of(model_uri=str(folder), local_model_cache=tmp_path / "other"))
    if seed == 0:
        assert expected[1] == {9, 11}
    bucket = {"model_uri": gcs_bucket.uri("model"), "storage_emulator_host": gcs_bucket.endpoint}
    bucket["local_model_cache"] = tmp_path / "cache"
    first = context_of(**bucket)
    assert text_of(first) == expected  # whose weights have not come yet
    weights = locate_checkpoint(first).weights
    weights.source.pull(weights.objects, first.cache, first.progress.pulled).release()
    gcs_bucket.faults([])
    assert text_of(context_of(**bucket)) == expected
    assert not [path for path in gcs_bucket.media_requests() if "tokenizer.json" in path]


def test_the_model_says_how_it_ends_though_its_tokenizer_is_elsewhere(tmp_path):
    """The tokenizer's own folder has a model too, whose ends and sampling are not asked for."""
    model, other = draw(tmp_path / "model", 0), draw(tmp_path / "other", 0)
    (model / "tokenizer.json").unlink()
    (other / "config.json").write_text(json.dumps({"eos_token_id": 1}))
    (other / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, "temperature": 0.5}))
    settings = {"model_uri": str(model), "tokenizer_uri": str(other), "local_model_cache": tmp_path / "cache"}
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": 3}))
    assert text_of(context_of(**settings))[1] == {3}
    (model / "generation_config.json").write_text(json.dumps({}))
    assert text_of(context_of(**settings))[1] == {9, 11}


def test_a_tokenizer_with_more_tokens_than_the_model_starts(tmp_path):
    folder = draw(tmp_path / "model", 0)
    (folder / "added_tokens.json").write_text(json.dumps({"<|later|>": 3072}))
    context = context_of(model_uri=str(folder), local_model_cache=tmp_path / "cache")
    located = locate_checkpoint(context)
    tokenizer = load_text(context, located, pull_tokenizer_files(context, located)).tokenizer
    assert (tokenizer.vocab_size, tokenizer.num_rows) == (3073, 3072)
