"""Checkpoints in 4 bits stay so: the integers, scales and zero points that they have, in as many bytes as they take."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from service.checkpoint.adapters.locate import locate_adapter
from service.checkpoint.adapters.read import read_updates
from service.checkpoint.discover import locate
from service.checkpoint.limits import LoadLimits
from service.checkpoint.load import load_checkpoint
from service.errors import MalformedCheckpoint, RefusedAdapter, SettingsError, UnquantizableWeights
from service.kernels.products.linear import choose_products
from service.models.decoder import Decoder
from service.models.weight_spec import FLOAT32
from service.observability.progress import Progress
from service.settings import Settings
from service.start.kinds.engine_spec import EngineSpec, choose_engine_spec
from service.storage.local import LocalSource
from tests.checkpoint.in_rows import in_rows
from tests.checkpoint.quantized_formats import FORMATS
from tests.checkpoint.test_stored_formats import UP, replaced, save, written
from tests.parity.test_reference_logits import logits_by_chunk
from tests.process import running_service
from tests.served import DEMO, SMALL

KEPT = ("w4a16", "w4a16 by row", "w4a16 asymmetric", "awq", "gptq")
TOKEN_IDS = np.arange(3, 15, dtype=np.int32)


def load(folder: Path, **settings: str) -> tuple[EngineSpec, dict[str, jax.Array]]:
    located = locate(str(folder), LocalSource)
    spec = choose_engine_spec(Settings(dtype="float32", **settings), located, jax.devices()[:1])
    loaded = load_checkpoint(located, spec.specs, mesh=spec.mesh, limits=LoadLimits(None, Progress(), 2**26))
    return spec, loaded.weights


def widened(weights: dict[str, np.ndarray], name: str) -> np.ndarray:
    """Return a weight as its integers, scales and zero points stand for it."""
    values, scale = weights[name].astype(np.float32), weights[f"{name}.scale"]
    groups = values.reshape(*scale.shape, -1)
    if (zero := weights.get(f"{name}.zero")) is not None:
        groups = groups - zero[..., None]
    return (groups * scale[..., None]).reshape(values.shape)


@pytest.mark.parametrize("name", KEPT)
def test_weights_are_exactly_what_the_checkpoint_stands_for_in_4_bits(name: str, tmp_path: Path):
    tensors, wide = written(name)
    spec, weights = load(save(tmp_path, tensors, FORMATS[name][0], num_files=3), quantization="int4")
    assert spec.number_formats["quantization"] == "int4"
    assert weights["layers.1.down"].dtype == jnp.int4
    weights = in_rows(spec.specs, weights)
    for layer, module, weight in ((1, "mlp.down", "down"), (3, "self_attn.o", "output")):
        stored = wide[f"model.layers.{layer}.{module}_proj.weight"]
        np.testing.assert_array_equal(widened(weights, f"layers.{layer}.{weight}"), stored)
    for part, module in zip(widened(weights, "layers.0.gate_up"), ("gate", "up"), strict=True):
        np.testing.assert_array_equal(part, wide[f"model.layers.0.mlp.{module}_proj.weight"])
    qkv = widened(weights, "layers.2.qkv")
    for part, module in ((qkv[:, :2], "q"), (qkv[:, 2], "k"), (qkv[:, 3], "v")):
        np.testing.assert_array_equal(part.reshape(-1, 256), wide[f"model.layers.2.self_attn.{module}_proj.weight"])
    # The embedding is not quantized in the checkpoint.
    assert weights["embed"].dtype == jnp.int8


def test_the_logits_are_those_of_the_same_weights_in_float32(tmp_path: Path):
    spec, weights = load(save(tmp_path, written("awq")[0], FORMATS["awq"][0]), quantization="int4")
    model = Decoder(spec.config, products=choose_products(spec.mesh, FLOAT32), quantization=spec.formats.quantization)
    kept = {name for name, array in weights.items() if array.dtype == jnp.int4}
    rows = in_rows(spec.specs, weights)
    wide = {name: jnp.asarray(widened(rows, name)) if name in kept else weights[name] for name in weights}
    made = logits_by_chunk(model, weights, TOKEN_IDS, 4)
    plain = WithWideLayers(spec.config, products=model.products, quantization=spec.formats.quantization)
    expected = logits_by_chunk(plain, wide, TOKEN_IDS, 4)
    # The embedding is in 8 bits, for whose products a hidden value in the middle between two may round either way.
    np.testing.assert_allclose(made, expected, atol=0.05, rtol=0)
    assert np.abs(expected).max() > 1


class WithWideLayers(Decoder):
    """A model whose layers are wide, and whose embedding is in 8 bits."""

    def weight_specs(self):
        """Name every weight but the scales and zero points of layers."""
        suffixes = (".scale", ".zero")
        specs = super().weight_specs()
        return tuple(spec for spec in specs if not (spec.name.startswith("layers.") and spec.name.endswith(suffixes)))


def test_memory_is_planned_with_4_bits_and_groups(tmp_path: Path):
    folder = save(tmp_path, written("awq")[0], FORMATS["awq"][0])
    in_4_bits, weights = load(folder, quantization="int4")
    in_8_bits, _ = load(folder, quantization="int8")
    products = [spec for spec in in_4_bits.specs if spec.dtype == ml_dtypes.int4]
    num_elements = sum(int(np.prod(spec.shape)) for spec in products)
    rows_bytes = sum(4 * int(np.prod(spec.shape[:-1])) for spec in products)
    # Half a byte in place of one, and float32 scales and zero points of 64 columns in place of a row's scale.
    saved = num_elements - num_elements // 2 - 2 * 4 * num_elements // 64 + rows_bytes
    assert in_8_bits.weights_bytes - in_4_bits.weights_bytes == saved
    assert weights.keys() == {spec.name for spec in in_4_bits.specs}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("gptq with desc_act", "stores the columns of a group apart"),
        ("w4a16 in order of activations", "stores the columns of a group apart"),
        ("w8a16", "stores packed of 8 bits"),
        ("gptq v2 of 8 bits, symmetric", "stores gptq of 8 bits"),
        ("fp8 by row", "stores fp8 of 8 bits"),
    ],
)
def test_4_bits_that_a_checkpoint_does_not_have_are_refused_by_its_storage(name, reason, tmp_path: Path):
    folder = save(tmp_path, written(name)[0], FORMATS[name][0])
    with pytest.raises(SettingsError, match=f"QUANTIZATION.* is int4, .* but this one {reason}"):
        load(folder, quantization="int4")


def test_layers_of_a_wide_checkpoint_become_4_bits_and_groups_of_32():
    wide, stored = load(DEMO)
    spec, weights = load(DEMO, quantization="int4")
    assert spec.number_formats["quantization"] == "int4"
    assert weights["embed"].dtype == jnp.int8
    rows = in_rows(spec.specs, weights)
    for name, kept in stored.items():
        if name.startswith("layers.") and f"{name}.scale" in weights:
            assert (weights[name].dtype, weights[f"{name}.scale"].dtype) == (jnp.int4, jnp.bfloat16)
            assert weights[f"{name}.scale"].shape == (*kept.shape[:-1], kept.shape[-1] // 32)
            error = widened(rows, name) - np.asarray(kept, np.float32)
            assert np.sqrt(np.mean(error**2)) < 0.08 * np.std(kept.astype(np.float32))
    assert spec.weights_bytes < 0.2 * wide.weights_bytes


def test_a_cpu_serves_rows_of_int8_unless_4_bits_are_asked_for(tmp_path: Path):
    spec, weights = load(save(tmp_path, written("awq")[0], FORMATS["awq"][0]))
    assert spec.number_formats["quantization"] == "int8"
    assert weights["layers.0.down"].dtype == jnp.int8


@pytest.mark.parametrize(
    ("name", "change", "error", "message"),
    [
        ("awq", replaced(f"{UP}.scales", (1, 9), np.nan), UnquantizableWeights, r"up_proj.scales: \[1, 9\] .* nan"),
        ("w4a16", replaced(f"{UP}.weight_scale", (3, 1), 0), UnquantizableWeights, r"\[3, 1\] has .*0\.0"),
        ("gptq", replaced(f"{UP}.g_idx", 3, 2), UnquantizableWeights, "g_idx: reorders the columns"),
        ("awq", lambda tensors: tensors.pop(f"{UP}.qzeros"), MalformedCheckpoint, "up_proj.qzeros: is missing"),
    ],
)
def test_tensors_that_are_wrong_are_refused_by_name(name: str, change, error, message: str, tmp_path: Path):
    tensors, _ = written(name)
    change(tensors)
    with pytest.raises(error, match=message):
        load(save(tmp_path, tensors, FORMATS[name][0]), quantization="int4")


def test_a_group_size_that_does_not_divide_is_refused_by_the_first_weight(tmp_path: Path):
    config = FORMATS["awq"][0] | {"group_size": 96}
    with pytest.raises(MalformedCheckpoint, match=r"q_proj.weight: has shape .* not a multiple of group_size = 96"):
        load(save(tmp_path, written("awq")[0], config), quantization="int4")


def test_an_adapter_is_not_merged_into_4_bits(tmp_path: Path):
    spec, _ = load(save(tmp_path / "m", written("awq")[0], FORMATS["awq"][0]), quantization="int4")
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["up_proj"]}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    module = f"base_model.model.{UP}"
    shapes = {f"{module}.lora_A.weight": (2, 256), f"{module}.lora_B.weight": (512, 2)}
    tensors = {name: np.ones(shape, np.float32) for name, shape in shapes.items()}
    save_file(tensors, adapter / "adapter_model.safetensors")
    located = locate_adapter(str(adapter), LocalSource)
    with pytest.raises(RefusedAdapter, match=r"up_proj.*stays in 4 bits.*MAX_LORAS.*QUANTIZATION=int8"):
        read_updates(located, spec.specs, LoadLimits(None, Progress(), 2**26))


@pytest.mark.slow
def test_a_service_answers_from_4_bits_and_finds_its_bundle(tmp_path: Path):
    folder = save(tmp_path / "m", written("awq")[0], FORMATS["awq"][0])
    answers = []
    for _ in range(2):
        with running_service(
            model_uri=folder, quantization="int4", local_model_cache=tmp_path / "cache", **SMALL
        ) as service:
            client = service.client()
            [model] = client.models.list().data
            assert model.model_extra["quantization"] == "int4"
            made = client.completions.create(model=model.id, prompt="One, two,", temperature=0, max_tokens=8)
            answers.append(made.choices[0].text)
    assert answers[0] == answers[1] != ""
