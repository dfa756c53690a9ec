"""Quantized checkpoints as their programs publish them: what they except, override, or put in another file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.errors import UnsupportedModel
from service.models.quantization_config import read_layer_storage
from service.offline.check import check as run_check
from service.settings import Settings
from tests.checkpoint.quantized_formats import FORMATS, compressed_config, fp8, gptq, gptq_config
from tests.checkpoint.test_stored_formats import load, save
from tests.checkpoint.test_stored_formats import written as written_in
from tests.served import demo_tensors

ROW = "fp8 by row"
DOWN, UP = "model.layers.1.mlp.down_proj", "model.layers.1.mlp.up_proj"
STATIC = {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]}
KV = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False}


def wide_weight(module: str) -> np.ndarray:
    return demo_tensors()[f"{module}.weight"].astype(np.float32)


def check(folder: Path, quantized: str | None, wide: str | None, stored: np.ndarray | None = None) -> None:
    """Check that a module has the values that are stored, and another one its own, exactly; and what `check` says."""
    loaded = load(folder, dtype="float32")
    assert run_check(str(folder), Settings()) == 0
    for module, expected in ((quantized, stored), (wide, None)):
        if module is None:
            continue
        name = f"layers.1.{'down' if module == DOWN else 'gate_up'}"
        array, scales = loaded[name], loaded.get(f"{name}.scale")
        value = array.astype(np.float32) if scales is None else array * scales.reshape(*scales.shape, 1)
        value = value.reshape(-1, value.shape[-1])
        if module == UP:
            value = value[len(value) // 2 :]
        if expected is None:
            assert scales is None
            np.testing.assert_array_equal(value, wide_weight(module))
        else:
            lost = np.sqrt(np.square(value - expected).mean() / np.square(expected).mean())
            assert lost < 0.015


def test_fp8_by_tensor_with_static_activations_and_scales_of_a_cache(tmp_path: Path):
    tensors, wide = written_in("fp8 by tensor")
    scalars = {name: part.reshape(()) if name.endswith("_scale") else part for name, part in tensors.items()}
    for name in [name for name in tensors if name.endswith("_proj.weight_scale")]:
        module = name.removesuffix(".weight_scale")
        scalars[f"{module}.input_scale"] = np.float32(0.02).reshape(())
    scalars |= {
        f"model.layers.{layer}.self_attn.{part}_scale": np.ones(1, np.float32) for layer in range(4) for part in "kv"
    }
    check(save(tmp_path, scalars, STATIC), DOWN, None, wide[f"{DOWN}.weight"])


def test_fp8_by_tensor_as_transformers_names_its_scales(tmp_path: Path):
    tensors, wide = written_in("fp8 by tensor")
    renamed = {name.replace("weight_scale", "weight_scale_inv"): part for name, part in tensors.items()}
    config = {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None}
    check(save(tmp_path, renamed, config), UP, None, wide[f"{UP}.weight"])


def groups(name: str, *targets: list[str]) -> dict[str, Any]:
    """Return a format's group of layers once for each list of targets."""
    [group] = FORMATS[name][0]["config_groups"].values()
    return {f"group_{number}": group | {"targets": those} for number, those in enumerate(targets)}


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("fp8 by row", {"kv_cache_scheme": KV, "ignore": ["lm_head", r"re:.*\.down_proj"]}),
        ("fp8 by row", {"ignore": ["re:.*lm_head", *(f"model.layers.{layer}.mlp.down_proj" for layer in range(4))]}),
        (ROW, {"config_groups": groups(ROW, [r"re:.*\.(up|gate|q|k|v|o)_proj$"]), "ignore": ["lm_head"]}),
        (ROW, {"config_groups": groups(ROW, ["re:.*self_attn"], ["re:.*mlp[.](up|gate)"]), "ignore": []}),
        ("w4a16", {"config_groups": groups("w4a16", ["re:model.*proj"]), "ignore": ["re:.*down_proj"]}),
        ("w4a16", {"ignore": ["lm_head", r"re:model\.layers\.[0-3]\.mlp\.down"]}),
        ("nvfp4", {"ignore": ["lm_head", *(f"model.layers.{layer}.mlp.down_proj" for layer in range(4))]}),
        ("nvfp4 of modelopt", {"ignore": ["lm_head", "*.down_proj*"]}),
        ("awq", {"modules_to_not_convert": ["down_proj"]}),
        ("awq", {"modules_to_not_convert": [f"model.layers.{layer}.mlp.down_proj" for layer in range(4)]}),
        ("awq", {"modules_to_not_convert": [r"model\.layers\..*down_proj"]}),
        ("gptq", {"dynamic": {r"-:.*\.down_proj": {}}}),
        ("gptq", {"modules_in_block_to_quantize": [["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
                                                   ["self_attn.o_proj"], ["mlp.up_proj", "mlp.gate_proj"]]}),
        ("fp8 in blocks", {"modules_to_not_convert": ["down_proj"]}),
    ],
)  # fmt: skip
def test_modules_that_a_configuration_excepts_are_as_they_are(name: str, fields: dict[str, Any], tmp_path: Path):
    tensors, wide = written_in(name)
    config = {**FORMATS[name][0], **fields}
    kept = {tensor: part for tensor, part in tensors.items() if ".down_proj." not in tensor}
    kept |= {tensor: part for tensor, part in demo_tensors().items() if ".down_proj." in tensor}
    check(save(tmp_path, kept, config), UP, DOWN, wide[f"{UP}.weight"])


def test_a_rule_of_gptq_gives_some_modules_other_bits_and_groups(tmp_path: Path):
    tensors, wide = written_in("gptq")
    eight = gptq(8)
    for name, weight in demo_tensors().items():
        if name.endswith("down_proj.weight"):
            module = name.removesuffix(".weight")
            made, wide[name] = eight(weight.astype(np.float32))
            tensors |= {f"{module}.{suffix}": np.ascontiguousarray(part) for suffix, part in made.items()}
    config = gptq_config(dynamic={r"+:.*\.down_proj": {"bits": 8}, r"-:.*down": {}})
    check(save(tmp_path, tensors, config), DOWN, None, wide[f"{DOWN}.weight"])
    check(tmp_path, UP, None, wide[f"{UP}.weight"])


@pytest.mark.parametrize(
    ("name", "file", "config"),
    [
        ("gptq", "quantize_config.json", {"bits": 4, "group_size": 64, "desc_act": False, "damp_percent": 0.01}),
        ("awq", "quant_config.json", {"zero_point": True, "q_group_size": 64, "w_bit": 4, "version": "GEMM"}),
        (
            "fp8 by tensor",
            "hf_quant_config.json",
            {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "exclude_modules": ["lm_head"]}},
        ),
    ],
)
def test_the_file_of_the_program_that_quantizes_stands_for_the_configuration(name, file, config, tmp_path: Path):
    tensors, wide = written_in(name)
    folder = save(tmp_path, tensors, {})
    values = json.loads((folder / "config.json").read_text())
    del values["quantization_config"]
    (folder / "config.json").write_text(json.dumps(values))
    (folder / file).write_text(json.dumps(config))
    check(folder, DOWN, None, wide[f"{DOWN}.weight"])


@pytest.mark.parametrize("num_files", [1, 2])
def test_such_a_file_beside_weights_that_are_wide_is_not_read(tmp_path: Path, num_files: int):
    folder = save(tmp_path, demo_tensors(), {}, num_files=num_files)
    values = json.loads((folder / "config.json").read_text())
    del values["quantization_config"]
    (folder / "config.json").write_text(json.dumps(values))
    (folder / "quantize_config.json").write_text(json.dumps({"bits": 4, "group_size": 64}))
    check(folder, None, DOWN)


@pytest.mark.parametrize("fields", [{"format": "naive-quantized"}, {"sparsity_config": {"format": "dense"}}])
def test_what_changes_nothing_of_compressed_tensors_is_accepted(fields: dict[str, Any], tmp_path: Path):
    tensors, wide = written_in("fp8 by row")
    check(save(tmp_path, tensors, FORMATS["fp8 by row"][0] | fields), DOWN, None, wide[f"{DOWN}.weight"])


@pytest.mark.parametrize("config", [{}, {"quant_method": "compressed-tensors", "format": "dense"}])
def test_a_configuration_of_nothing_is_none(config: dict[str, Any]):
    assert read_layer_storage("m", {"quantization_config": config}) is None


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, r"by bitsandbytes \(.*load_in_4bit, nf4\)"),
        ({"group_size": 64, "bits": 4}, r"by MLX .* have mlx_lm.convert"),
        ({"quant_method": "intel/auto-round", "bits": 4}, "by AutoRound"),
        ({"quant_method": "exl2", "bits": 4.0}, "by ExLlamaV2"),
    ],
)
def test_what_is_not_served_is_named_as_people_call_it(config: dict[str, Any], named: str):
    with pytest.raises(UnsupportedModel, match=f"the weights are quantized {named}"):
        read_layer_storage("m", {"quantization_config": config})


def test_fp8_in_blocks_of_compressed_tensors(tmp_path: Path):
    write, tensors, wide = fp8((128, 128), "_scale"), {}, {}
    for name, weight in demo_tensors().items():
        if not name.endswith("_proj.weight"):
            tensors[name] = weight
            continue
        made, wide[name] = write(weight.astype(np.float32))
        tensors |= {f"{name.removesuffix('.weight')}.{suffix}": part for suffix, part in made.items()}
    weights = {"strategy": "block", "block_structure": [128, 128]}
    config = compressed_config("float-quantized", weights, {"strategy": "group", "group_size": 128})
    check(save(tmp_path, tensors, config), DOWN, None, wide[f"{DOWN}.weight"])


def test_a_configuration_in_the_part_of_the_text_counts():
    values = {"text_config": {"quantization_config": gptq_config()}}
    assert read_layer_storage("m", values) == read_layer_storage("m", {"quantization_config": gptq_config()})


def test_zeros_that_gptq_saves_as_biases_are_left_out(tmp_path: Path):
    tensors, wide = written_in("gptq")
    modules = [name.removesuffix(".qweight") for name in tensors if name.endswith(".qweight")]
    biases = {f"{module}.bias": np.zeros(tensors[f"{module}.scales"].shape[1], np.float16) for module in modules}
    check(save(tmp_path, {**tensors, **biases}, gptq_config()), UP, None, wide[f"{UP}.weight"])
