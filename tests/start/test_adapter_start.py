"""A start with ADAPTER_URI serves the merged model from the bundle of its base."""

import json
import shutil
from pathlib import Path

import numpy as np
import openai
import pytest
from safetensors.numpy import save_file

from service.offline.convert import convert
from service.settings import Settings
from tests.process import running_service
from tests.served import DEMO, SMALL, demo_tensors, outcomes_of, stats_of

pytestmark = pytest.mark.slow

TARGETS = ("self_attn.q_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.down_proj")


def save_adapter(folder: Path, seed: int = 0, base: str = "levserve-demo") -> Path:
    """Write an adapter of the demo model that changes its answers."""
    random, tensors = np.random.RandomState(seed), {}
    for name, tensor in demo_tensors().items():
        module = name.removesuffix(".weight")
        if module.endswith(TARGETS):
            num_out, num_in = tensor.shape
            tensors[f"base_model.model.{module}.lora_A.weight"] = random.randn(4, num_in).astype(np.float32)
            tensors[f"base_model.model.{module}.lora_B.weight"] = 0.05 * random.randn(num_out, 4).astype(np.float32)
    folder.mkdir(parents=True)
    values = {
        "base_model_name_or_path": base,
        "peft_type": "LORA",
        "r": 4,
        "lora_alpha": 4,
        "target_modules": [t.split(".")[1] for t in TARGETS],
    }
    (folder / "adapter_config.json").write_text(json.dumps(values))
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def completion(service, model: str = "levserve-demo") -> tuple[list[str], str]:
    """Return a greedy text and the fingerprint of the model."""
    answer = service.client().completions.create(
        model=model, prompt="The capital of", max_tokens=20, temperature=0, logprobs=1
    )
    return answer.choices[0].logprobs.tokens, answer.system_fingerprint


def test_a_start_merges_an_adapter_and_finds_the_bundle_of_its_base(one_sequence, tmp_path):
    adapter = save_adapter(tmp_path / "adapter")
    convert(str(DEMO), str(tmp_path / "merged"), Settings(local_model_cache=tmp_path / "cache"), str(adapter))
    common = {"model_name": "levserve-demo", "admin_api_key": "operator", **SMALL}
    found = {}
    for name, settings in {
        "base": {},
        "merged while loading": {"adapter_uri": adapter},
        "merged before": {"model_uri": tmp_path / "merged"},
    }.items():
        settings |= {"local_model_cache": one_sequence.cache}
        with running_service(**common, **settings) as service:
            assert outcomes_of(service) == {"hit": 1}
            assert stats_of(service)["compiles"] == 0
            found[name] = completion(service)
    assert found["merged while loading"][0] == found["merged before"][0] != found["base"][0]
    assert len({fingerprint for _, fingerprint in found.values()}) == 3


def test_a_catalogue_serves_a_model_and_its_adapters_at_once(tmp_path):
    models = tmp_path / "models"
    shutil.copytree(DEMO, models / "levserve-demo")
    save_adapter(models / "one", 1, base="anyone/levserve-demo")
    save_adapter(models / "two", 2, base="/somewhere/levserve-demo")
    save_adapter(models / "stray", 3, base="org/absent")
    with running_service(catalogue_uri=models, max_cached_models="3", **SMALL) as service:
        names = ("levserve-demo", "one", "two", "one", "levserve-demo")
        texts = [completion(service, name)[0] for name in names]
        listed = {model.id: model.parent for model in service.client().models.list().data}
        with pytest.raises(openai.NotFoundError):
            completion(service, "stray")
    assert listed == {"levserve-demo": None, "one": "levserve-demo", "two": "levserve-demo"}
    assert texts[:2] == [texts[4], texts[3]]
    assert texts[0] != texts[1] != texts[2] != texts[0]
