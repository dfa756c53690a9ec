"""Experts in MXFP4 are read exactly, and give the logits of transformers, which widens them too."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from service.checkpoint.discover import locate
from service.checkpoint.load import LoadLimits, load_checkpoint, load_on_host
from service.device.mesh import DeviceMesh
from service.errors import MalformedCheckpoint, UnquantizableWeights, UnsupportedModel
from service.models.decoder import Decoder
from service.models.quantization import INT8, Quantization, kept_storage
from service.models.registry import read_config
from service.models.weight_spec import FLOAT32, FP4
from service.observability.progress import Progress
from service.storage.local import LocalSource
from service.weights.quantization import quantize_rows
from tests.parity.family_cases import MXFP4_CASE
from tests.parity.test_reference_logits import logits_by_chunk
from tests.served import DEMO
from tests.tolerances import SAME_MODEL_ATOL

DOWN = "model.layers.1.mlp.experts.down_proj"
KEPT_DOWN = "layers.1.expert_down"  # in the model


def saved(folder: Path, tensors: dict[str, np.ndarray]) -> Path:
    folder.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / file, folder / file)
    (folder / "config.json").write_text(json.dumps(MXFP4_CASE.hub_config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def load(folder: Path, quantization: Quantization = Quantization.NONE) -> tuple[Decoder, dict[str, np.ndarray]]:
    located = locate(str(folder), LocalSource)
    model = Decoder(read_config("m", located.hub_config), FLOAT32, quantization=quantization)
    return model, load_on_host(located, model.weight_specs(), LoadLimits(None, Progress(), 1 << 20)).weights


def widened(tensors: dict[str, np.ndarray], name: str) -> np.ndarray:
    """Return [expert, out, in] by the types that ml_dtypes has."""
    blocks, scales = tensors[f"{name}_blocks"], tensors[f"{name}_scales"]
    pairs = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*scales.shape, 32)
    numbers = pairs.view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    numbers = numbers * scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float32)[..., None]
    return numbers.reshape(*scales.shape[:2], -1)


def test_logits_equal_transformers(tmp_path):
    model, weights = load(saved(tmp_path / "m", MXFP4_CASE.tensors()))
    arrays = {name: jax.numpy.asarray(array) for name, array in weights.items()}
    logits = logits_by_chunk(model, arrays, MXFP4_CASE.token_ids, len(MXFP4_CASE.token_ids))
    np.testing.assert_allclose(logits, np.load(MXFP4_CASE.reference_path)["logits"], atol=SAME_MODEL_ATOL, rtol=0)


def test_the_numbers_are_exact_unless_int8_is_asked_for(tmp_path):
    tensors = MXFP4_CASE.tensors()
    _, weights = load(saved(tmp_path / "m", tensors))
    expected = widened(tensors, DOWN)
    np.testing.assert_array_equal(weights["layers.1.expert_down"], expected)
    _, int8 = load(tmp_path / "m", Quantization.INT8)
    assert int8["layers.1.expert_down"].dtype == INT8
    values, _ = quantize_rows(expected.reshape(-1, 64))
    np.testing.assert_array_equal(int8["layers.1.expert_down"].reshape(-1, 64), values)


def test_an_exponent_that_stands_for_no_number_is_refused_by_its_place(tmp_path):
    tensors = MXFP4_CASE.tensors()
    tensors[f"{DOWN}_scales"][2, 3, 1] = 255
    with pytest.raises(UnquantizableWeights, match=r"down_proj_scales.*\[2, 3, 1\] has the exponent 255"):
        load(saved(tmp_path / "m", tensors))


def test_blocks_of_another_shape_are_refused_by_name(tmp_path):
    tensors = MXFP4_CASE.tensors()
    tensors[f"{DOWN}_blocks"] = tensors[f"{DOWN}_blocks"][:, :, :1]
    with pytest.raises(
        MalformedCheckpoint, match=r"down_proj_blocks.* has shape \[6, 32, 1, 16\]; config.json makes it"
    ):
        load(saved(tmp_path / "m", tensors))


def test_experts_that_are_said_to_be_wide_are_refused():
    quantization = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head", "model.layers.*.mlp.experts"]}
    with pytest.raises(UnsupportedModel, match=r"modules_to_not_convert = .*experts.* is not served"):
        read_config("m", {**MXFP4_CASE.hub_config, "quantization_config": quantization})


def test_columns_that_are_no_whole_blocks_are_refused(tmp_path):
    config = {**MXFP4_CASE.hub_config, "intermediate_size": 48}
    folder = saved(tmp_path / "m", MXFP4_CASE.tensors())
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(MalformedCheckpoint, match="48 columns are not a multiple of the 32 of a block"):
        load(folder)


def test_kept_in_4_bits_the_numbers_are_those_of_the_checkpoint_and_the_logits_those_of_transformers(tmp_path):
    tensors = MXFP4_CASE.tensors()
    located = locate(str(saved(tmp_path / "m", tensors)), LocalSource)
    config = read_config("m", located.hub_config)
    storage = kept_storage(config.layer_storage, Quantization.NONE, "gpu")
    model = Decoder(replace(config, layer_storage=storage), FLOAT32)
    mesh = DeviceMesh((jax.devices("cpu")[0],))
    loaded = load_checkpoint(located, model.weight_specs(), mesh=mesh, limits=LoadLimits(None, Progress(), 1 << 20))
    down, scale = (np.asarray(loaded.weights[name]) for name in (KEPT_DOWN, f"{KEPT_DOWN}.scale"))
    assert (down.dtype, scale.shape) == (FP4, (*down.shape[:-1], down.shape[-1] // 32))
    numbers = down.astype(np.float32).reshape(*scale.shape, 32) * scale[..., None]
    np.testing.assert_array_equal(numbers.reshape(down.shape), widened(tensors, DOWN))
    logits = logits_by_chunk(model, dict(loaded.weights), MXFP4_CASE.token_ids, len(MXFP4_CASE.token_ids))
    np.testing.assert_allclose(logits, np.load(MXFP4_CASE.reference_path)["logits"], atol=SAME_MODEL_ATOL, rtol=0)


def test_kept_in_4_bits_an_exponent_that_stands_for_no_number_is_refused(tmp_path):
    tensors = MXFP4_CASE.tensors()
    tensors[f"{DOWN}_scales"][2, 3, 1] = 255
    located = locate(str(saved(tmp_path / "m", tensors)), LocalSource)
    config = read_config("m", located.hub_config)
    storage = kept_storage(config.layer_storage, Quantization.NONE, "gpu")
    specs = Decoder(replace(config, layer_storage=storage), FLOAT32).weight_specs()
    mesh = DeviceMesh((jax.devices("cpu")[0],))
    with pytest.raises(UnquantizableWeights, match=r"down_proj_scales.*\[2, 3, 1\] has the exponent 255"):
        load_checkpoint(located, specs, mesh=mesh, limits=LoadLimits(None, Progress(), 1 << 20))


@pytest.mark.parametrize(
    ("quantization", "platform", "num_devices", "is_kept"),
    [
        (Quantization.NONE, "gpu", 1, True),
        (Quantization.NONE, "gpu", 2, False),  # whose shares of the columns may not be whole blocks
        (Quantization.NONE, "tpu", 1, False),
        (Quantization.INT4, "cpu", 1, True),
        (Quantization.INT8, "gpu", 1, False),
    ],
)
def test_one_gpu_keeps_experts_in_4_bits_and_others_on_request(quantization, platform, num_devices, is_kept):
    config = read_config("m", MXFP4_CASE.hub_config)
    storage = kept_storage(config.layer_storage, quantization, platform, num_devices)
    specs = Decoder(replace(config, layer_storage=storage), FLOAT32, quantization=quantization).weight_specs()
    experts = [spec for spec in specs if spec.name.endswith(("expert_gate_up", "expert_down"))]
    assert experts
    assert {spec.dtype == FP4 for spec in experts} == {is_kept}
