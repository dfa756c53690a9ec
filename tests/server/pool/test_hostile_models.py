"""Models whose checkpoints are attacks: each is refused to those who name it, and nobody else notices."""

import json
import shutil
import struct

import httpx
import pytest

from tests.process import running_service
from tests.served import ADMIN, DEMO, SMALL
from tests.weights.pickled.corpus import CORPUS

pytestmark = pytest.mark.slow

WEIGHTS = "model.safetensors"
LEAVE_A_TRACE = "import os, pathlib; pathlib.Path(os.environ['LEVSERVE_TEST_CANARY']).write_text('executed')"


def with_pickle(folder):
    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(CORPUS["the canary"][0])


def with_a_header_that_lies(folder):
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", 10**7) + content[8:100_000])


def with_weights_elsewhere(folder):
    index = {"weight_map": {"model.embed_tokens.weight": f"../good/{WEIGHTS}"}}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(index))
    (folder / WEIGHTS).rename(folder / "other.safetensors")


def with_code(folder):
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "canary.Config", "AutoModelForCausalLM": "canary.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "canary.py").write_text(LEAVE_A_TRACE)


# What clients see of each, without the address.
REASONS = {"pickle": "Nothing in it was executed", "header": "claims a header", "elsewhere": "which is not there"}
REFUSED = {"pickle": with_pickle, "header": with_a_header_that_lies, "elsewhere": with_weights_elsewhere}


def complete(service, model):
    body = {"model": model, "prompt": "The sky is", "max_tokens": 6, "temperature": 0}
    return httpx.post(f"{service.url}/v1/completions", json=body, timeout=120)


def test_a_hostile_checkpoint_is_refused_to_those_who_name_it_and_nothing_of_it_is_executed(tmp_path, one_sequence):
    for name, change in {"good": lambda _: None, "code": with_code, **REFUSED}.items():
        shutil.copytree(DEMO, tmp_path / "models" / name)
        change(tmp_path / "models" / name)
    trace = tmp_path / "trace"
    bundles = {"local_model_cache": one_sequence.cache, "bundle_uri": one_sequence.shared}
    settings = {"catalogue_uri": tmp_path / "models", "admin_api_key": "operator", "levserve_test_canary": trace}
    with running_service(**SMALL, **bundles, **settings) as service:
        expected = complete(service, "good").json()["choices"][0]["text"]
        for name in REFUSED:
            answer = complete(service, name)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "model_load_failed"), name
            assert str(tmp_path) not in answer.text
            assert REASONS[name] in answer.json()["error"]["message"]
        assert complete(service, "code").json()["choices"][0]["text"] == expected
        assert complete(service, "good").json()["choices"][0]["text"] == expected
        listed = {model["id"]: model for model in httpx.get(f"{service.url}/v1/models").json()["data"]}
        models = httpx.get(f"{service.url}/admin/models", headers=ADMIN).json()["data"]
    assert {name for name, model in listed.items() if "error" in model} == REFUSED.keys()
    assert all(REASONS[name] in listed[name]["error"] for name in REFUSED)
    assert str(tmp_path) not in str(listed)
    failures = {model["id"]: model["failure"] for model in models}
    assert {name for name, failure in failures.items() if failure} == REFUSED.keys()
    assert "Nothing in it was executed." in str(failures["pickle"])
    assert "claims a header" in str(failures["header"])
    assert f"../good/{WEIGHTS}" in str(failures["elsewhere"])
    assert not trace.exists()
