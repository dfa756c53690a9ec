"""A W8A8-int8 checkpoint is loaded as it is stored; one that contradicts its `quantization_config` is refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from service.checkpoint.discover import locate
from service.checkpoint.limits import LoadLimits
from service.checkpoint.load import load_on_host
from service.errors import CheckpointError, MalformedCheckpoint, UnquantizableWeights
from service.observability.progress import Progress
from service.settings import Settings
from service.start.kinds.engine_spec import EngineSpec, choose_engine_spec
from service.storage.local import LocalSource
from service.weights.quantization import quantize_rows
from tests.models.test_quantization_config import W8A8
from tests.served import DEMO, demo_tensors

SCALE = "model.layers.1.mlp.up_proj.weight_scale"


def w8a8_tensors() -> dict[str, np.ndarray]:
    made = {}
    for name, tensor in demo_tensors().items():
        if not name.endswith("_proj.weight"):
            made[name] = tensor
            continue
        values, scales = quantize_rows(tensor)
        made |= {name: values, f"{name}_scale": scales[:, None]}
    return made


def write(folder: Path, tensors: dict[str, np.ndarray], *, is_quantized: bool) -> Path:
    shutil.copytree(DEMO, folder, dirs_exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((DEMO / "config.json").read_text()) | {"tie_word_embeddings": True}
    if is_quantized:
        config["quantization_config"] = W8A8
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def load(folder: Path, **settings: str) -> tuple[EngineSpec, dict[str, np.ndarray]]:
    located = locate(str(folder), LocalSource)
    spec = choose_engine_spec(Settings(**settings), located, jax.devices()[:1])
    return spec, load_on_host(located, spec.specs, LoadLimits(None, Progress(), 2**26)).weights


@pytest.fixture(scope="module")
def tensors() -> dict[str, np.ndarray]:
    return w8a8_tensors()


def test_the_layers_are_those_that_are_stored_and_the_rest_follows_the_setting(tensors, tmp_path: Path):
    folder = write(tmp_path, tensors, is_quantized=True)
    _, quantized = load(DEMO, quantization="int8", dtype="float32")
    spec, stored = load(folder, dtype="float32")
    assert spec.number_formats == {"dtype": "float32", "quantization": "int8", "kv_dtype": "float32"}
    assert {str(stored[name].dtype) for name in ("embed", "final_norm")} == {"float32"}
    both, with_embedding = load(folder, quantization="int8", dtype="float32")
    assert with_embedding["embed"].dtype == np.int8
    assert len({spec.key.digest, both.key.digest}) == 2
    beside_fp8, in_fp8 = load(folder, quantization="fp8", dtype="float32")
    assert beside_fp8.number_formats["quantization"] == "int8"
    assert (in_fp8["layers.0.qkv"].dtype, in_fp8["embed"].dtype) == (np.int8, ml_dtypes.float8_e4m3fn)
    for name, weight in stored.items():
        if name.startswith("layers."):
            np.testing.assert_array_equal(weight, quantized[name], err_msg=name)


def as_bfloat16(tensors: dict[str, np.ndarray]) -> None:
    tensors[SCALE.removesuffix("_scale")] = np.zeros((768, 256), ml_dtypes.bfloat16)


def scale_of(value: float) -> Callable[[dict[str, np.ndarray]], None]:
    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors[SCALE] = tensors[SCALE].copy()
        tensors[SCALE][7] = value

    return change


def in_groups(tensors: dict[str, np.ndarray]) -> None:
    tensors[SCALE] = np.ones((768, 2), np.float32)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (as_bfloat16, MalformedCheckpoint, r"up_proj.weight' is BF16; quantization_config in config.json makes it I8"),
        (lambda tensors: tensors.pop(SCALE), MalformedCheckpoint, r"up_proj.weight_scale: is missing"),
        (in_groups, MalformedCheckpoint, r"weight_scale: has shape \[768, 2\]; config.json makes it \[768, 1\]"),
        *(
            (
                scale_of(value),
                UnquantizableWeights,
                r"up_proj.weight_scale: row 7 has the scale .*, which should be positive",
            )
            for value in (0.0, -1.0, np.nan, np.inf)
        ),
    ],
)
def test_a_configuration_that_its_tensors_contradict_is_refused(
    change, error: type[CheckpointError], message: str, tensors, tmp_path: Path
):
    changed = dict(tensors)
    change(changed)
    with pytest.raises(error, match=message):
        load(write(tmp_path, changed, is_quantized=True))


def test_int8_tensors_without_a_configuration_are_refused(tensors, tmp_path: Path):
    without_scales = {name: tensor for name, tensor in tensors.items() if not name.endswith("_scale")}
    with pytest.raises(MalformedCheckpoint, match="is I8; supported types are F32, F16, BF16"):
        load(write(tmp_path, without_scales, is_quantized=False))
