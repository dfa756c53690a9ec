"""Quantized checkpoints of other programs are loaded as what they stand for, or refused by the tensor that is wrong."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from service.checkpoint.discover import locate
from service.checkpoint.limits import LoadLimits
from service.checkpoint.load import load_on_host
from service.errors import MalformedCheckpoint, UnquantizableWeights
from service.observability.progress import Progress
from service.settings import Settings
from service.start.kinds.engine_spec import choose_engine_spec
from service.storage.local import LocalSource
from service.weights.quantization import quantize_rows
from tests.checkpoint.quantized_formats import FORMATS
from tests.served import DEMO, demo_tensors

LAYER = "model.layers.1."
UP, OUTPUT = f"{LAYER}mlp.up_proj", f"{LAYER}self_attn.o_proj"
# Of the wide weights' root mean square; what their own format has lost of them is 1.5 to 8 times as much.
LOST_TO_INT8 = 0.015


def written(name: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return the demo model's tensors, the layers in a format, and the weights of layers as they are then."""
    _, write = FORMATS[name]
    tensors, wide = {}, {}
    for tensor, values in demo_tensors().items():
        if not tensor.endswith("_proj.weight"):
            tensors[tensor] = values
            continue
        module = tensor.removesuffix(".weight")
        made, wide[tensor] = write(values.astype(np.float32))
        tensors |= {f"{module}.{suffix}": np.ascontiguousarray(part) for suffix, part in made.items()}
    return tensors, wide


def save(folder: Path, tensors: dict[str, np.ndarray], config: dict[str, Any], num_files: int = 1) -> Path:
    shutil.copytree(DEMO, folder, dirs_exist_ok=True)
    if num_files == 1:
        save_file(tensors, folder / "model.safetensors")
    else:
        (folder / "model.safetensors").unlink()
        place = {name: f"model-{index % num_files}.safetensors" for index, name in enumerate(tensors)}
        for file in set(place.values()):
            save_file({name: tensor for name, tensor in tensors.items() if place[name] == file}, folder / file)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": place}))
    hub_config = json.loads((DEMO / "config.json").read_text()) | {"quantization_config": config}
    (folder / "config.json").write_text(json.dumps(hub_config))
    return folder


def load(folder: Path, **settings: str) -> dict[str, np.ndarray]:
    located = locate(str(folder), LocalSource)
    spec = choose_engine_spec(Settings(**settings), located, jax.devices()[:1])
    return load_on_host(located, spec.specs, LoadLimits(None, Progress(), 2**26)).weights


@pytest.mark.parametrize("name", FORMATS)
def test_weights_are_the_int8_rows_of_what_the_format_stands_for(name: str, tmp_path: Path):
    tensors, wide = written(name)
    loaded = load(save(tmp_path, tensors, FORMATS[name][0], num_files=3 if name == "awq" else 1), dtype="float32")
    for layer, module, weight in ((1, "mlp.down", "down"), (3, "self_attn.o", "output")):
        stored = wide[f"model.layers.{layer}.{module}_proj.weight"]
        made, scales = loaded[f"layers.{layer}.{weight}"], loaded[f"layers.{layer}.{weight}.scale"]
        values, expected_scales = quantize_rows(stored)
        assert made.dtype == np.int8
        np.testing.assert_allclose(scales, expected_scales, rtol=1e-6)
        # A value in the middle between two may round either way.
        assert np.abs(made.reshape(values.shape).astype(int) - values).max() <= 1
        lost = made.reshape(values.shape) * scales[:, None] - stored
        assert np.sqrt(np.mean(lost**2)) <= LOST_TO_INT8 * np.sqrt(np.mean(stored**2))
    gate_up = loaded["layers.0.gate_up"] * loaded["layers.0.gate_up.scale"][..., None]
    for part, module in zip(gate_up, ("gate", "up"), strict=True):
        np.testing.assert_allclose(part, wide[f"model.layers.0.mlp.{module}_proj.weight"], atol=0.01)
    assert loaded["embed"].dtype == np.float32


def test_modules_that_are_named_stay_wide(tmp_path: Path):
    config = FORMATS["fp8 in blocks"][0] | {"modules_to_not_convert": ["model.layers.1.mlp", "model.norm"]}
    tensors, _ = written("fp8 in blocks")
    wide = {name: tensor for name, tensor in demo_tensors().items() if name.startswith("model.layers.1.mlp")}
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("model.layers.1.mlp")}
    loaded = load(save(tmp_path, kept | wide, config))
    np.testing.assert_array_equal(loaded["layers.1.down"], wide["model.layers.1.mlp.down_proj.weight"].astype("f4"))
    assert loaded["layers.1.qkv"].dtype == loaded["layers.2.down"].dtype == np.int8


def replaced(tensor: str, index: Any, value: float) -> Callable[[dict[str, np.ndarray]], None]:
    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors[tensor] = tensors[tensor].copy()
        tensors[tensor][index] = value

    return change


def reshaped(tensor: str, *shape: int) -> Callable[[dict[str, np.ndarray]], None]:
    return lambda tensors: tensors.update({tensor: np.ones(shape, tensors[tensor].dtype)})


def added(tensor: str) -> Callable[[dict[str, np.ndarray]], None]:
    return lambda tensors: tensors.update({tensor: np.ones((512, 1), np.float32)})


def cast(tensor: str, dtype: Any) -> Callable[[dict[str, np.ndarray]], None]:
    return lambda tensors: tensors.update({tensor: tensors[tensor].astype(dtype)})


@pytest.mark.parametrize(
    ("name", "change", "error", "message"),
    [
        (
            "w4a16",
            replaced(f"{UP}.weight_scale", (3, 1), 0),
            UnquantizableWeights,
            r"weight_scale: \[3, 1\] has .*0\.0",
        ),
        ("w4a16", replaced(f"{UP}.weight_scale", (3, 1), -1), UnquantizableWeights, r"up_proj.weight_scale: .* -1"),
        ("awq", replaced(f"{UP}.scales", (1, 9), np.nan), UnquantizableWeights, r"up_proj.scales: \[1, 9\] .* nan"),
        ("gptq", replaced(f"{UP}.scales", (0, 0), np.inf), UnquantizableWeights, r"up_proj.scales: \[0, 0\] .* inf"),
        ("fp8 in blocks", replaced(f"{UP}.weight_scale_inv", (0, 0), 0), UnquantizableWeights, "scale_inv: .*0.0"),
        ("fp8 by row", replaced(f"{UP}.weight", (7, 5), np.nan), UnquantizableWeights, "up_proj.weight: row 7 .*NaN"),
        ("w4a16", replaced(f"{UP}.weight_shape", 0, 9), UnquantizableWeights, r"weight_shape: is \[9, 256\]"),
        ("gptq", replaced(f"{UP}.g_idx", 3, 4), UnquantizableWeights, "g_idx: refers to a group outside of the 4"),
        ("gptq", replaced(f"{UP}.g_idx", 3, 2), UnquantizableWeights, "g_idx: reorders the columns"),
        ("w4a16", reshaped(f"{OUTPUT}.weight_scale", 256, 2), MalformedCheckpoint, r"makes it \[256, 4\]"),
        ("awq", cast(f"{OUTPUT}.qweight", np.int64), MalformedCheckpoint, "'model.layers.1.* is I64; .* makes it I32"),
        ("fp8 by row", cast(f"{OUTPUT}.weight", np.float32), MalformedCheckpoint, "is F32; .* makes it F8_E4M3"),
        ("gptq", lambda tensors: tensors.pop(f"{OUTPUT}.g_idx"), MalformedCheckpoint, "o_proj.g_idx: is missing"),
        ("awq", lambda tensors: tensors.pop(f"{OUTPUT}.qzeros"), MalformedCheckpoint, "o_proj.qzeros: is missing"),
        ("w4a16", added(f"{UP}.weight_zero_point"), MalformedCheckpoint, "weight_zero_point: 1 tensors .* no place"),
        ("fp8 by row", added(f"{UP}.weight_global_scale"), MalformedCheckpoint, "weight_global_scale: 1 .* no place"),
    ],
)
def test_tensors_that_are_wrong_are_refused_by_name(name: str, change: Any, error: Any, message: str, tmp_path: Path):
    tensors, _ = written(name)
    change(tensors)
    with pytest.raises(error, match=message):
        load(save(tmp_path, tensors, FORMATS[name][0]))


@pytest.mark.parametrize("name", ["awq", "gptq", "w4a16"])
def test_a_group_size_that_does_not_divide_is_refused_by_the_first_weight(name: str, tmp_path: Path):
    config = json.loads(json.dumps(FORMATS[name][0]).replace('"group_size": 64', '"group_size": 96'))
    with pytest.raises(MalformedCheckpoint, match=r"q_proj.weight: has shape .* not a multiple of group_size = 96"):
        load(save(tmp_path, written(name)[0], config))


def test_a_module_that_is_quantized_and_listed_as_wide_is_refused(tmp_path: Path):
    config = FORMATS["fp8 in blocks"][0] | {"modules_to_not_convert": ["model.layers.1.mlp"]}
    with pytest.raises(
        MalformedCheckpoint, match=r"model\.layers\.1\.mlp.*weight_scale_inv: 3 tensors such as this one"
    ):
        load(save(tmp_path, written("fp8 in blocks")[0], config))


@pytest.mark.parametrize("quantization", ["int8", "fp8"])
def test_the_setting_decides_about_the_embedding_and_what_packed_layers_become(quantization: str, tmp_path: Path):
    tensors, wide = written("fp8 by row")
    loaded = load(save(tmp_path, tensors, FORMATS["fp8 by row"][0]), quantization=quantization)
    dtype = {"int8": np.int8, "fp8": ml_dtypes.float8_e4m3fn}[quantization]
    assert loaded["embed"].dtype == loaded["layers.0.qkv"].dtype == dtype
    down = loaded["layers.1.down"].astype(np.float32) * loaded["layers.1.down.scale"][:, None]
    stored = wide["model.layers.1.mlp.down_proj.weight"]
    # Rows of FP8 whose largest is 448 are as they were.
    assert np.sqrt(np.mean((down - stored) ** 2)) <= LOST_TO_INT8 * np.sqrt(np.mean(stored**2))
