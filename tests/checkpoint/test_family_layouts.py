"""Tensors that a family fuses or stores transposed become the weights that they stand for, while their bytes stream."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from service.checkpoint.discover import locate
from service.checkpoint.limits import LoadLimits
from service.checkpoint.load import load_on_host
from service.errors import MalformedCheckpoint
from service.models.decoder_weights import decoder_weight_specs
from service.models.quantization import Quantization
from service.models.registry import read_config
from service.observability.progress import Progress
from service.storage.local import LocalSource
from service.weights.quantization import quantize_rows
from tests.parity.family_cases import FAMILY_CASES
from tests.served import DEMO

CASES = {case.name: case for case in FAMILY_CASES}
PARTS = ("gate", "up", "down")


def saved(folder: Path, name: str, **more: np.ndarray) -> Path:
    """Write the checkpoint of a case, with further tensors."""
    folder.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / file, folder / file)
    (folder / "config.json").write_text(json.dumps(CASES[name].hub_config))
    save_file({**CASES[name].tensors(), **more}, folder / "model.safetensors")
    return folder


def load(folder: Path, quantization: Quantization = Quantization.NONE) -> dict[str, np.ndarray]:
    located = locate(str(folder), LocalSource)
    specs = decoder_weight_specs(read_config("m", located.hub_config), quantization=quantization)
    return load_on_host(located, specs, LoadLimits(None, Progress(), 1 << 20)).weights


def test_fused_queries_keys_and_values_are_cut_apart(tmp_path):
    fused = CASES["phi3"].tensors()["model.layers.1.self_attn.qkv_proj.weight"]
    query, key, value = (part.reshape(2, -1, 8, 32) for part in np.split(fused, [32, 48]))
    expected = np.concatenate([query, key, value], axis=1)  # within each of two key-value heads
    weights = load(saved(tmp_path / "m", "phi3"))
    np.testing.assert_array_equal(weights["layers.1.qkv"], expected)
    int8 = load(tmp_path / "m", Quantization.INT8)
    values, scales = quantize_rows(expected.reshape(-1, 32))
    np.testing.assert_array_equal(int8["layers.1.qkv"].reshape(-1, 32), values)
    np.testing.assert_allclose(int8["layers.1.qkv.scale"].reshape(-1), scales, rtol=1e-6)


@pytest.mark.parametrize("name", ["mixtral", "granite_moe", "snowball"])
def test_experts_with_a_tensor_each_and_stacked_experts_become_one_array(tmp_path, name):
    tensors = CASES[name].tensors()
    moe = "model.layers.1.block_sparse_moe."
    if name == "mixtral":
        stack = [[tensors[f"{moe}experts.{expert}.{part}.weight"] for part in ("w1", "w3")] for expert in range(6)]
        expected = np.array(stack)
    elif name == "snowball":
        stacks = [tensors[f"model.layers.1.mlp.experts.{part}_proj.weight"] for part in ("gate", "up")]
        expected = np.stack(stacks, axis=1)
    else:
        expected = tensors[f"{moe}input_linear.weight"].reshape(6, 2, 48, 32)
    weights = load(saved(tmp_path / "m", name))
    np.testing.assert_array_equal(weights["layers.1.expert_gate_up"], expected)
    int8 = load(tmp_path / "m", Quantization.INT8)
    values, scales = quantize_rows(expected.reshape(-1, 32))
    np.testing.assert_array_equal(int8["layers.1.expert_gate_up"].reshape(-1, 32), values)
    np.testing.assert_allclose(int8["layers.1.expert_gate_up.scale"].reshape(-1), scales, rtol=1e-6)
    np.testing.assert_array_equal(int8["layers.1.router"], weights["layers.1.router"])  # never quantized


def stacked(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return Mixtral's tensors as Levanter exports them."""
    others = [name for name in tensors if "experts" not in name]
    made = {name.replace("block_sparse_moe.gate", "mlp.gate"): tensors[name] for name in others}
    for layer in range(3):
        experts, ours = f"model.layers.{layer}.block_sparse_moe.experts", f"model.layers.{layer}.mlp.experts"
        of_part = {
            part: np.array([tensors[f"{experts}.{number}.{part}.weight"] for number in range(6)])
            for part in ("w1", "w3", "w2")
        }
        made[f"{ours}.gate_up_proj"] = np.concatenate([of_part["w1"], of_part["w3"]], axis=1)
        made[f"{ours}.down_proj"] = of_part["w2"]
    return made


def test_mixtrals_experts_as_levanter_stacks_them_are_those_of_single_tensors(tmp_path):
    tensors = CASES["mixtral"].tensors()
    single = load(saved(tmp_path / "single", "mixtral"))
    save_file(stacked(tensors), saved(tmp_path / "stacked", "mixtral") / "model.safetensors")
    weights = load(tmp_path / "stacked")
    assert weights.keys() == single.keys()
    for name, weight in single.items():
        np.testing.assert_array_equal(weights[name], weight)
    scales = load(tmp_path / "stacked", Quantization.INT8)["layers.2.expert_down.scale"]
    np.testing.assert_array_equal(scales, load(tmp_path / "single", Quantization.INT8)["layers.2.expert_down.scale"])


def test_heros_experts_in_banks_are_those_of_single_tensors(tmp_path):
    tensors = CASES["hero"].tensors()
    single = load(saved(tmp_path / "single", "hero"))
    banks = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for layer in range(5):
        for part in ("gate", "up", "down"):
            ours = f"model.layers.{layer}.mlp.experts"
            banks[f"{ours}.{part}_proj.weight"] = np.array(
                [tensors[f"{ours}.{number}.{part}_proj.weight"] for number in range(6)]
            )
    save_file(banks, saved(tmp_path / "banks", "hero") / "model.safetensors")
    weights = load(tmp_path / "banks")
    assert weights.keys() == single.keys()
    for name, weight in single.items():
        np.testing.assert_array_equal(weights[name], weight)


def test_heros_shared_experts_are_one_that_is_as_wide_as_all(tmp_path):
    tensors = CASES["hero"].tensors()
    of_both = [
        {part: tensors[f"model.layers.1.shared_experts.{n}.{part}_proj.weight"] for part in PARTS} for n in (0, 1)
    ]
    for quantization in (Quantization.NONE, Quantization.INT8):
        folder = tmp_path / quantization.name
        weights = load(saved(folder, "hero"), quantization)
        down = np.concatenate([one["down"] for one in of_both], axis=1)
        np.testing.assert_array_equal(weights["layers.1.down"], down)  # never quantized: its rows are in two tensors
        up = np.stack([np.concatenate([one[part] for one in of_both]) for part in ("gate", "up")])
        if quantization is Quantization.INT8:
            values, scales = quantize_rows(up.reshape(-1, 32))
            np.testing.assert_array_equal(weights["layers.1.gate_up"].reshape(-1, 32), values)
            np.testing.assert_allclose(weights["layers.1.gate_up.scale"].reshape(-1), scales, rtol=1e-6)
        else:
            np.testing.assert_array_equal(weights["layers.1.gate_up"], up)


def cut_in_equal_parts(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return OLMo Hybrid's tensors as transformers 5.24 saves them: of what three convolutions are, three parts."""
    made = dict(tensors)
    for prefix in [name.removesuffix("q_conv1d.weight") for name in tensors if name.endswith("q_conv1d.weight")]:
        names = [f"{prefix}{part}_conv1d.weight" for part in "qkv"]
        whole = np.concatenate([tensors[name] for name in names])
        size = -(-len(whole) // 3)
        made |= {name: whole[place * size : (place + 1) * size] for place, name in enumerate(names)}
    return made


@pytest.mark.parametrize("name", ["olmo_hybrid", "olmo_hybrid_rope"])
@pytest.mark.parametrize("num_files", [1, 3])
def test_olmo_hybrids_convolutions_cut_in_equal_parts_are_those_of_the_published_files(tmp_path, name, num_files):
    tensors = CASES[name].tensors()
    published = load(saved(tmp_path / "published", name))
    parts, folder = cut_in_equal_parts(tensors), saved(tmp_path / "saved", name)
    assert any(parts[name].shape != tensor.shape for name, tensor in tensors.items())
    (folder / "model.safetensors").unlink()
    for number in range(num_files):
        own = {tensor: parts[tensor] for tensor in sorted(parts)[number::num_files]}
        save_file(own, folder / f"model-{number + 1:05}-of-{num_files:05}.safetensors")
    weights = load(folder)
    assert weights.keys() == published.keys()
    for own, weight in published.items():
        np.testing.assert_array_equal(weights[own], weight)


def test_convolutions_that_together_have_other_channels_are_refused_by_name(tmp_path):
    parts = cut_in_equal_parts(CASES["olmo_hybrid"].tensors())
    name = "model.layers.0.linear_attn.v_conv1d.weight"
    save_file({**parts, name: parts[name][:-1]}, saved(tmp_path / "m", "olmo_hybrid") / "model.safetensors")
    with pytest.raises(MalformedCheckpoint, match=r"layers.0.linear_attn.\w_conv1d.weight: has shape"):
        load(tmp_path / "m")


def test_stacked_experts_of_which_one_is_single_too_are_refused(tmp_path):
    name = "model.layers.1.block_sparse_moe.experts.2.w3.weight"
    both = {**stacked(CASES["mixtral"].tensors()), name: np.ones((48, 32), np.float32)}
    save_file(both, saved(tmp_path / "m", "mixtral") / "model.safetensors")
    with pytest.raises(
        MalformedCheckpoint, match=r"experts.2.w3.weight' is in 'model.layers.1.mlp.experts.gate_up_proj"
    ):
        load(tmp_path / "m")


def test_stacked_experts_of_another_number_are_refused_by_the_name_of_the_first_that_is_missing(tmp_path):
    tensors = stacked(CASES["mixtral"].tensors())
    tensors["model.layers.1.mlp.experts.down_proj"] = tensors["model.layers.1.mlp.experts.down_proj"][:5]
    save_file(tensors, saved(tmp_path / "m", "mixtral") / "model.safetensors")
    with pytest.raises(MalformedCheckpoint, match=r"layers.1.block_sparse_moe.experts.5.w2.weight: is missing"):
        load(tmp_path / "m")


@pytest.mark.parametrize("prefix", ["transformer.", ""])
def test_transposed_products_are_turned_and_the_prefix_of_a_head_is_optional(tmp_path, prefix):
    tensors = CASES["gpt2"].tensors()
    folder = saved(tmp_path / "m", "gpt2")
    save_file(
        {name.replace("transformer.", prefix): tensor for name, tensor in tensors.items()},
        folder / "model.safetensors",
    )
    weights = load(folder)
    down = np.ascontiguousarray(tensors["transformer.h.1.mlp.c_proj.weight"].T)
    np.testing.assert_array_equal(weights["layers.1.down"], down)
    fused = tensors["transformer.h.0.attn.c_attn.weight"].T
    np.testing.assert_array_equal(weights["layers.0.qkv"][:, 1].reshape(32, 32), fused[32:64])
    values, _ = quantize_rows(down)
    np.testing.assert_array_equal(load(folder, Quantization.INT8)["layers.1.down"], values)


def test_stacked_experts_that_are_stored_transposed_are_turned(tmp_path):
    tensors, experts = CASES["gpt_oss"].tensors(), "model.layers.1.mlp.experts."
    weights = load(saved(tmp_path / "m", "gpt_oss"))
    np.testing.assert_array_equal(weights["layers.1.expert_down"], tensors[f"{experts}down_proj"].swapaxes(1, 2))
    # The rows of both projections up alternate, and stay so.
    gate_up = tensors[f"{experts}gate_up_proj"].swapaxes(1, 2).reshape(6, 48, 2, 32)
    np.testing.assert_array_equal(weights["layers.1.expert_gate_up"], gate_up)
    values, _ = quantize_rows(gate_up.reshape(-1, 32))
    int8 = load(tmp_path / "m", Quantization.INT8)
    np.testing.assert_array_equal(int8["layers.1.expert_gate_up"].reshape(-1, 32), values)


def test_masks_of_old_checkpoints_are_left_out(tmp_path):
    mask = np.ones((1, 1, 64, 64), np.float32)
    assert load(saved(tmp_path / "m", "gpt2", **{"transformer.h.0.attn.bias": mask}))


def test_fused_and_single_tensors_at_once_are_refused_by_name(tmp_path):
    single = {"model.layers.0.self_attn.q_proj.weight": np.ones((32, 32), np.float32)}
    with pytest.raises(MalformedCheckpoint, match=r"layers.0.self_attn.q_proj.weight: 1 tensors .* have no place"):
        load(saved(tmp_path / "m", "phi3", **single))
