"""What transformers 5 calls tensors in memory, which wrappers of training save, is read as what it saves itself."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from service.checkpoint.discover import locate
from service.errors import MalformedCheckpoint
from service.models.decoder_weights import decoder_weight_specs
from service.models.registry import OWN_HEAD, read_config
from service.storage.local import LocalSource
from service.weights.left_out import UNUSED
from service.weights.names import resolve
from tests.checkpoint.test_names_of_tensors import EVERY, Tensors, assert_same, halves, load, write
from tests.parity.family_cases import FAMILY_CASES
from tests.parity.saved_cases import SPELLINGS

EXPERT = re.compile(r"(.*)\.experts\.(\d+)\.(\w+)\.weight")


def stacked(tensors: Tensors, gate: str, up: str, down: str) -> dict[str, np.ndarray]:
    """Stack the tensors of experts, whose matrices have these names."""
    made = {name: tensor for name, tensor in tensors.items() if not EXPERT.fullmatch(name)}
    found = [match for name in tensors if (match := EXPERT.fullmatch(name))]
    for layer in dict.fromkeys(match[1] for match in found):
        count = len({match[2] for match in found if match[1] == layer})

        def of(part: str, layer: str = layer, count: int = count) -> np.ndarray:
            return np.array([tensors[f"{layer}.experts.{number}.{part}.weight"] for number in range(count)])

        made[f"{layer}.experts.gate_up_proj"] = np.concatenate([of(gate), of(up)], axis=1)
        made[f"{layer}.experts.down_proj"] = of(down)
    return made


def mixtral(tensors: Tensors) -> dict[str, np.ndarray]:
    made = stacked(tensors, "w1", "w3", "w2")
    return {name.replace("block_sparse_moe", "mlp"): tensor for name, tensor in made.items()}


def qwen3_moe(tensors: Tensors) -> dict[str, np.ndarray]:
    return stacked(tensors, "gate_proj", "up_proj", "down_proj")


def granite_moe(tensors: Tensors) -> dict[str, np.ndarray]:
    names = (
        ("input_linear.weight", "experts.gate_up_proj"),
        ("output_linear.weight", "experts.down_proj"),
        ("router.layer.weight", "router.weight"),
    )
    made = dict(tensors)
    for old, new in names:
        made = {name.replace(old, new): tensor for name, tensor in made.items()}
    return made


IN_MEMORY: dict[str, Callable[[Tensors], dict[str, np.ndarray]]] = {
    "mixtral": mixtral,
    "qwen3_moe": qwen3_moe,
    "qwen3_moe_some": qwen3_moe,
    "granite_moe": granite_moe,
}
WRAPPED = {
    "plain": lambda name: name,
    "compiled": lambda name: f"_orig_mod.{name}",
    "data-parallel": lambda name: f"module._orig_mod.{name}",
    "PEFT": lambda name: "base_model.model." + name.replace(".experts.", ".experts.base_layer.base_layer."),
}


@pytest.mark.parametrize("name", IN_MEMORY)
def test_experts_as_they_are_in_memory_are_those_that_are_saved(tmp_path: Path, name: str):
    case = EVERY[name]
    plain = load(write(tmp_path / "saved", case.hub_config, case.tensors()))
    for wrapper, renamed in WRAPPED.items():
        tensors = {renamed(key): tensor for key, tensor in IN_MEMORY[name](case.tensors()).items()}
        assert tensors.keys().isdisjoint(case.tensors()) or wrapper == "plain"
        assert_same(load(write(tmp_path / wrapper, case.hub_config, *halves(tensors))), plain)


@pytest.mark.parametrize("name", IN_MEMORY)
def test_a_head_beside_stacked_experts_is_served(tmp_path: Path, name: str):
    case = EVERY[name]
    config = {**case.hub_config, "tie_word_embeddings": True}
    head = np.ones_like(case.tensors()["model.embed_tokens.weight"])
    folder = write(tmp_path / "m", config, *halves({**IN_MEMORY[name](case.tensors()), "lm_head.weight": head}))
    assert locate(str(folder), LocalSource).hub_config[OWN_HEAD] is True
    np.testing.assert_array_equal(load(folder)["unembed"], head)


@pytest.mark.parametrize("prefix", ["", "model.", "module.model."])
@pytest.mark.parametrize("name", ["gemma3_images", "idefics3", "qwen3_vl_scaling"])
def test_the_head_of_a_model_with_images_may_lie_in_its_text_model(name: str, prefix: str):
    values = json.loads(json.dumps(SPELLINGS[name])) | {"tie_word_embeddings": False}
    specs = decoder_weight_specs(read_config("m", values))
    model = [source.name for spec in specs for source in spec.sources]
    [head] = [tensor for tensor in model if tensor.endswith("lm_head.weight")]
    stored = {f"{prefix}{'language_model.' if tensor == head else ''}{tensor}": tensor for tensor in model}
    found = resolve("m", specs, {"model.safetensors": stored})
    assert {tensor.name for tensor in found.tensors.values()} == stored.keys()


@pytest.mark.parametrize("prefix", ["", "model."])
def test_keys_and_values_of_layers_that_read_those_of_others_are_left_out(prefix: str):
    case = next(case for case in FAMILY_CASES if case.name == "gemma4_shared")
    specs = decoder_weight_specs(read_config("m", json.loads(json.dumps(case.hub_config))))
    names = [source.name for spec in specs for source in spec.sources]
    number = max(int(name.split(".")[2]) for name in names if "layers." in name)
    unused = [f"model.layers.{number}.self_attn.{part}.weight" for part in ("k_proj", "v_proj", "k_norm")]
    stored = [prefix + name.removeprefix("model.") for name in (*names, *unused)]
    found = resolve("m", specs, {"model.safetensors": stored})
    assert {tensor.name for tensor in found.tensors.values()} == set(stored[: len(names)])
    assert sorted(found.left_out[UNUSED]) == sorted(stored[len(names) :])
    with pytest.raises(MalformedCheckpoint, match="have no place"):
        resolve("m", specs, {"model.safetensors": [*stored, f"{prefix}layers.0.self_attn.v_norm.weight"]})
