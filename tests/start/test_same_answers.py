"""A checkpoint answers alike, and ends alike, wherever it lies and whichever start serves it."""

import json
import shutil
from typing import Any

import pytest
from tokenizers import Tokenizer

from service.offline.convert import convert
from service.settings import Settings
from tests.process import running_service
from tests.served import DEMO, SMALL, demo_tensors
from tests.weights.pickled.written import archive, pickled, state

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
QUESTION, END = "Who are you?", "tiny"  # a token of the demo model's own answer


@pytest.fixture
def folder(tmp_path):
    """Return the demo model with pickled weights and an end token that nothing but its config.json names."""
    made = tmp_path / "model"
    made.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(DEMO / name, made / name)
    end = Tokenizer.from_file(str(DEMO / "tokenizer.json")).encode(END, add_special_tokens=False).ids
    assert len(end) == 1
    config = {**json.loads((DEMO / "config.json").read_text()), "eos_token_id": end}
    (made / "config.json").write_text(json.dumps(config))
    value, storages = state(demo_tensors())
    (made / "pytorch_model.bin").write_bytes(archive(pickled(value), storages))
    return made


def answer_of(**settings: Any) -> tuple[Any, ...]:
    with running_service(model_name="m", **settings, **SMALL) as service:
        body = {"model": "m", "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 40}
        answer = service.client().chat.completions.create(**body, logprobs=True)
        choice = answer.choices[0]
        tokens = [item.token for item in choice.logprobs.content]
        return choice.message.content, choice.finish_reason, answer.usage.completion_tokens, tokens


def test_every_way_to_a_checkpoint_gives_its_tokens_and_its_end(folder, one_sequence, gcs_bucket, tmp_path):
    caches = {name: tmp_path / name for name in ("folder", "bucket", "stream", "converted")}
    for cache in caches.values():
        shutil.copytree(one_sequence.cache / "bundles", cache / "bundles")
    gcs_bucket.upload_directory(folder, "model")
    bucket = {"model_uri": gcs_bucket.uri("model"), "storage_emulator_host": gcs_bucket.endpoint}
    expected = answer_of(model_uri=folder, local_model_cache=caches["folder"])
    assert expected[1] == "stop"
    assert 0 < expected[2] < 24
    assert answer_of(**bucket, local_model_cache=caches["bucket"]) == expected
    assert answer_of(**bucket, local_model_cache=caches["bucket"]) == expected  # from the cache
    settings = Settings(local_model_cache=tmp_path / "convert", storage_emulator_host=gcs_bucket.endpoint)
    assert convert(gcs_bucket.uri("model"), gcs_bucket.uri("safe"), settings) == 0
    safe = {**bucket, "model_uri": gcs_bucket.uri("safe")}
    assert answer_of(**safe, local_model_cache=caches["converted"]) == expected
    assert answer_of(**safe, local_model_cache=caches["stream"], model_stream="true") == expected
