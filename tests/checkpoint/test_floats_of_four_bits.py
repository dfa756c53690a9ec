"""Weights in NVFP4 and MXFP4 stay in 4 bits and give the logits of what they stand for, or are refused by name."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from service.checkpoint.discover import locate
from service.checkpoint.limits import LoadLimits
from service.checkpoint.load import load_checkpoint, load_on_host
from service.device.mesh import DeviceMesh
from service.errors import MalformedCheckpoint, UnquantizableWeights
from service.models.decoder import Decoder
from service.models.quantization import Quantization, kept_storage
from service.models.registry import read_config
from service.models.stored.layers import Encoding, LayerStorage
from service.models.weight_spec import FLOAT32, FP4
from service.observability.progress import Progress
from service.storage.local import LocalSource
from service.weights.packed.unpack import unpacked_rows
from tests.checkpoint.quantized_formats import F8, fp4_config, fp8, modelopt_config, mxfp4, nvfp4
from tests.parity.family_cases import FAMILY_CASES, draw
from tests.parity.test_reference_logits import logits_by_chunk
from tests.served import DEMO

CASES = {case.name: case for case in FAMILY_CASES}
QWEN, GPT_OSS, GEMMA = (CASES[name] for name in ("qwen3_moe", "gpt_oss", "gemma4_experts"))
QWEN_CONFIG = {**QWEN.hub_config, "moe_intermediate_size": 32}  # whole blocks
LIMITS = LoadLimits(None, Progress(), 1 << 20)
EXPERT = "model.layers.1.mlp.experts.2.down_proj"
KV_SCALES = {f"model.layers.{layer}.self_attn.{part}_proj.{part}_scale" for layer in (0, 1) for part in "kv"}
NV, MX = "nvfp4-pack-quantized", "mxfp4-pack-quantized"

type Tensors = dict[str, np.ndarray]

# By name: `quantization_config`, and how a weight is written.
FORMATS: Mapping[str, tuple[dict[str, Any], Callable[[np.ndarray], tuple[Tensors, np.ndarray]]]] = {
    "compressed-tensors": (fp4_config(NV, activations=True), nvfp4(is_divided=True)),
    "compressed-tensors, weights": (fp4_config(NV, activations=False), nvfp4(is_divided=True)),
    "modelopt": (modelopt_config("NVFP4"), nvfp4(is_divided=False)),
    "modelopt, weights": (modelopt_config("W4A16_NVFP4"), nvfp4(is_divided=False)),
    "mxfp4": (fp4_config(MX, activations=True), mxfp4),
}


def qwen_tensors() -> Tensors:
    shapes = {
        name: tuple(32 if size == 24 else size for size in tensor.shape) for name, tensor in QWEN.tensors().items()
    }
    return {name: draw(QWEN.model_type, name, shape) for name, shape in shapes.items()}


def written(name: str, is_wide: Callable[[str], bool] = lambda module: False) -> tuple[Tensors, Tensors]:
    """Return the tensors of a mixture of experts in a format, with scales of a cache, and those they stand for."""
    _, write = FORMATS[name]
    tensors: Tensors = {scale: np.ones(1, np.float32) for scale in KV_SCALES}
    wide: Tensors = {}
    for tensor, values in qwen_tensors().items():
        wide[tensor] = values
        if not tensor.endswith("_proj.weight") or is_wide(tensor):
            tensors[tensor] = values
            continue
        made, wide[tensor] = write(values)
        tensors |= {f"{tensor.removesuffix('.weight')}.{end}": np.ascontiguousarray(part) for end, part in made.items()}
    return tensors, wide


def load(
    folder: Path,
    tensors: Tensors,
    hub_config: Mapping[str, Any],
    quantization: Mapping[str, Any] | None,
    platform: str = "gpu",
    **kept: Any,
) -> tuple[Decoder, dict[str, jax.Array]]:
    """Save a checkpoint, and load it as a platform would keep it."""
    folder.mkdir()
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / file, folder / file)
    more = {} if quantization is None else {"quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps({**hub_config, **more}))
    save_file(tensors, folder / "model.safetensors")
    located = locate(str(folder), LocalSource)
    config = read_config("m", located.hub_config)
    storage = kept_storage(config.layer_storage, Quantization.NONE, platform, **kept)
    model = Decoder(replace(config, layer_storage=storage), FLOAT32)
    mesh = DeviceMesh((jax.devices("cpu")[0],))
    return model, dict(load_checkpoint(located, model.weight_specs(), mesh=mesh, limits=LIMITS).weights)


def widened(weights: dict[str, jax.Array], name: str) -> np.ndarray:
    """Return a weight as its numbers and their scales stand for it, or as it is."""
    values, scale = np.asarray(weights[name]).astype(np.float32), weights.get(f"{name}.scale")
    if scale is None:
        return values
    scales = np.asarray(scale).reshape(*values.shape[:-1], -1)
    return (values.reshape(*scales.shape, -1) * scales[..., None]).reshape(values.shape)


def downs(tensors: Tensors, layer: int = 1) -> np.ndarray:
    return np.stack([tensors[f"model.layers.{layer}.mlp.experts.{expert}.down_proj.weight"] for expert in range(8)])


def check_logits(
    made: tuple[Decoder, dict[str, jax.Array]], expected: tuple[Decoder, dict[str, jax.Array]], token_ids: np.ndarray
) -> None:
    own, reference = (logits_by_chunk(model, weights, token_ids, len(token_ids)) for model, weights in (made, expected))
    np.testing.assert_allclose(own, reference, atol=1e-3, rtol=0)
    assert np.abs(reference).max() > 0.1


@pytest.mark.parametrize("name", FORMATS)
def test_layers_and_experts_stay_in_4_bits_and_are_what_they_stand_for(name: str, tmp_path: Path):
    tensors, wide = written(name)
    model, weights = load(tmp_path / "m", tensors, QWEN_CONFIG, FORMATS[name][0])
    for kept in ("qkv", "output", "expert_gate_up", "expert_down"):
        assert weights[f"layers.1.{kept}"].dtype == FP4
        assert f"layers.1.{kept}.zero" not in weights
    np.testing.assert_array_equal(widened(weights, "layers.1.expert_down"), downs(wide))
    np.testing.assert_array_equal(widened(weights, "layers.0.output"), wide["model.layers.0.self_attn.o_proj.weight"])
    if name == "compressed-tensors":
        check_logits((model, weights), load(tmp_path / "wide", wide, QWEN_CONFIG, None), QWEN.token_ids)


@pytest.mark.parametrize("name", FORMATS)
def test_elsewhere_layers_are_int8_rows_or_exact(name: str, tmp_path: Path):
    tensors, wide = written(name)
    for number, where in enumerate(({"platform": "cpu"}, {"platform": "gpu", "num_devices": 2})):
        _, weights = load(tmp_path / f"{number}", tensors, QWEN_CONFIG, FORMATS[name][0], **where)
        down = widened(weights, "layers.1.expert_down")
        if name == "mxfp4":
            np.testing.assert_array_equal(down, downs(wide))
            continue
        assert weights["layers.1.expert_down"].dtype == np.int8
        assert np.abs(down - downs(wide)).max() <= 0.51 * np.asarray(weights["layers.1.expert_down.scale"]).max()


@pytest.mark.parametrize("name", ["compressed-tensors", "modelopt"])
def test_modules_that_are_excepted_are_as_they_are(name: str, tmp_path: Path):
    key = "ignore" if name == "compressed-tensors" else "exclude_modules"
    pattern = r"re:.*self_attn.*" if name == "compressed-tensors" else "*.self_attn*"
    tensors, wide = written(name, lambda module: "self_attn" in module)
    config = {**FORMATS[name][0], key: ["lm_head", pattern]}
    _, weights = load(tmp_path / "m", tensors, QWEN_CONFIG, config)
    assert (weights["layers.0.qkv"].dtype, weights["layers.0.expert_down"].dtype) == (np.float32, FP4)
    np.testing.assert_array_equal(widened(weights, "layers.1.expert_down"), downs(wide))


def test_a_file_of_modelopt_stands_for_the_configuration(tmp_path: Path):
    tensors, _ = written("modelopt")
    fields = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16, "exclude_modules": ["lm_head"]}
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "hf_quant_config.json").write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": fields}))
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / file, folder / file)
    (folder / "config.json").write_text(json.dumps(QWEN_CONFIG))
    save_file(tensors, folder / "model.safetensors")
    storage = read_config("m", locate(str(folder), LocalSource).hub_config).layer_storage
    assert storage is not None
    assert storage.encoding is Encoding.NVFP4


def test_layers_of_several_precisions_are_each_what_they_stand_for(tmp_path: Path):
    tensors, wide = written("modelopt", lambda module: "self_attn" in module or ".experts.7." in module)
    layers: dict[str, dict[str, Any]] = {"model.layers.0.mlp.experts": {"quant_algo": "NVFP4", "group_size": 16}}
    layers |= {f"model.layers.1.mlp.experts.{n}": {"quant_algo": "NVFP4", "group_size": 16} for n in range(7)}
    for name, values in qwen_tensors().items():
        if "self_attn" in name and "_proj" in name:
            module = name.removesuffix(".weight")
            made, wide[name] = fp8((0, 0), "_scale")(values)
            tensors |= {f"{module}.{end}": part for end, part in made.items()}
            layers[module] = {"quant_algo": "FP8"}
        elif ".0.mlp.experts.7." in name:
            module = name.removesuffix(".weight")
            made, wide[name] = nvfp4(is_divided=False)(values)
            tensors |= {f"{module}.{end}": part for end, part in made.items()}
    config = {**modelopt_config("MIXED_PRECISION"), "quantized_layers": layers}
    _, weights = load(tmp_path / "m", tensors, QWEN_CONFIG, config)
    assert weights["layers.0.expert_down"].dtype == FP4
    np.testing.assert_array_equal(widened(weights, "layers.0.expert_down"), downs(wide, 0))
    # Those of one weight that are of several kinds become rows of 8 bits, as FP8 does.
    for name, stored in (
        ("expert_down", downs(wide)),
        ("output", wide["model.layers.1.self_attn.o_proj.weight"]),
    ):
        assert weights[f"layers.1.{name}"].dtype == np.int8
        error = widened(weights, f"layers.1.{name}") - stored
        assert np.abs(error).max() <= 0.51 * np.asarray(weights[f"layers.1.{name}.scale"]).max()


def stacked(tensors: Tensors) -> tuple[Tensors, Tensors]:
    """Return gpt-oss with the stacks of experts as ModelOpt transposes them, and what they stand for."""
    made: Tensors = {}
    wide: Tensors = {}
    for name, values in tensors.items():
        if name.endswith("_proj") and ".experts." in name:
            parts, of_rows = nvfp4(is_divided=False)(np.swapaxes(values, 1, 2))
            wide[name] = np.ascontiguousarray(np.swapaxes(of_rows, 1, 2))
            made[name] = np.ascontiguousarray(np.swapaxes(parts["weight"], 1, 2))
            made[f"{name}_weight_scale"] = np.ascontiguousarray(np.swapaxes(parts["weight_scale"], 1, 2))
            made[f"{name}_weight_scale_2"] = parts["weight_scale_2"]
            made[f"{name}_input_scale"] = parts["input_scale"]
        elif name.endswith("_proj.weight"):
            parts, wide[name] = nvfp4(is_divided=False)(values)
            made |= {f"{name.removesuffix('weight')}{end}": part for end, part in parts.items()}
        else:
            made[name] = wide[name] = values
    return made, wide


def test_stacks_of_experts_are_read_as_modelopt_transposes_them(tmp_path: Path):
    tensors, wide = stacked(GPT_OSS.tensors())
    _, weights = load(tmp_path / "m", tensors, GPT_OSS.hub_config, modelopt_config("NVFP4"))
    _, wide_weights = load(tmp_path / "wide", wide, GPT_OSS.hub_config, None)
    for name in ("expert_gate_up", "expert_down", "qkv"):
        assert weights[f"layers.1.{name}"].dtype == FP4
        np.testing.assert_array_equal(widened(weights, f"layers.1.{name}"), wide_weights[f"layers.1.{name}"])


@pytest.mark.parametrize(
    ("config", "write"), [FORMATS["compressed-tensors"], FORMATS["modelopt"]], ids=["ct", "modelopt"]
)
def test_experts_of_a_family_with_stacks_are_read_one_by_one(config, write, tmp_path: Path):
    hub_config = {**GEMMA.hub_config, "moe_intermediate_size": 32}
    tensors: Tensors = {}
    wide: Tensors = {}
    shapes = {name: tuple(32 if n == 24 else n for n in each.shape) for name, each in GEMMA.tensors().items()}
    for name, shape in shapes.items():
        is_stack = ".experts." in name
        values = wide[name] = draw(GEMMA.model_type, name, (6, 64, 32) if name.endswith("gate_up_proj") else shape)
        if is_stack:
            made = [write(each) for each in (np.concatenate(np.split(values, 2, 1)) if "gate_up" in name else values)]
            ends = [
                f"{n}.{part}_proj" for part in (("gate", "up") if "gate_up" in name else ("down",)) for n in range(6)
            ]
            for end, (parts, _) in zip(ends, made, strict=True):
                tensors |= {f"{name.rpartition('.')[0]}.{end}.{last}": part for last, part in parts.items()}
            stored = np.stack([each for _, each in made])
            wide[name] = np.concatenate(np.split(stored, 2), 1) if "gate_up" in name else stored
        elif name.endswith("_proj.weight"):
            parts, wide[name] = write(values)
            tensors |= {f"{name.removesuffix('weight')}{last}": part for last, part in parts.items()}
        else:
            tensors[name] = values
    _, weights = load(tmp_path / "m", tensors, hub_config, config)
    _, wide_weights = load(tmp_path / "wide", wide, hub_config, None)
    for name in ("expert_gate_up", "expert_down", "gate_up"):
        assert weights[f"layers.1.{name}"].dtype == FP4
        np.testing.assert_array_equal(widened(weights, f"layers.1.{name}"), wide_weights[f"layers.1.{name}"])


# What compressed-tensors 0.20.1 makes of torch.manual_seed(3), torch.randn(3, 32) times 0.1, 0.7 and 2 by row.
PUBLISHED = bytes.fromhex(
    "391da4f7a8a2253441ea350973d62497cd4c90f52c621f767a9af395d54ebc66b8a36f6d83bedcfd91c9279e22d285ac"
)
PUBLISHED_SCALES = bytes.fromhex("595e69737d7e")
FIRST = [[-0.0133056640625, 0.039794921875, -0.07958984375], [-0.318359375, -0.212890625, -0.212890625]]


def test_numbers_are_those_that_compressed_tensors_dequantizes():
    storage = LayerStorage(Encoding.NVFP4, 4, (1, 16), is_divided=True)
    tensors = {
        "values": np.frombuffer(PUBLISHED, np.uint8).reshape(3, 16),
        "scales": np.frombuffer(PUBLISHED_SCALES, np.uint8).reshape(3, 2).view(F8),
        "tensor_scale": np.array([676.7793579101562], np.float32),
    }
    [(rows,)] = unpacked_rows(storage, (3, 32), tensors)
    # It rounds to bfloat16.
    np.testing.assert_allclose(rows[:2, :3], FIRST, rtol=2**-8)


def scale_at(value: float, *, block: int = 1, numbers: int | None = None) -> Callable[[Tensors], None]:
    """Replace the scale of a block of numbers, and what is in it."""

    def change(tensors: Tensors) -> None:
        tensors[f"{EXPERT}.weight_scale"][3, block] = value
        if numbers is not None:
            values = f"{EXPERT}.weight_packed" if f"{EXPERT}.weight_packed" in tensors else f"{EXPERT}.weight"
            tensors[values][3, 8:16] = numbers

    return change


@pytest.mark.parametrize("numbers", [0x00, 0x80, 0x77, 0xF7])
@pytest.mark.parametrize("name", ["compressed-tensors", "modelopt"])
def test_a_block_that_was_too_small_for_a_scale_is_zero(name: str, numbers: int, tmp_path: Path):
    """Older releases of ModelOpt divided by a scale that had become zero, which makes every number the largest."""
    tensors, wide = written(name)
    scale_at(0, numbers=numbers)(tensors)
    _, weights = load(tmp_path / "m", tensors, QWEN_CONFIG, FORMATS[name][0])
    down = widened(weights, "layers.1.expert_down")
    np.testing.assert_array_equal(down[2, 3, 16:], 0)
    down[2, 3, 16:] = downs(wide)[2, 3, 16:]
    np.testing.assert_array_equal(down, downs(wide))


def put(end: str, value: np.ndarray) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({f"{EXPERT}.{end}": value})


def without(end: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({"": tensors.pop(f"{EXPERT}.{end}")}) or tensors.pop("") is None


def as_fp8(tensors: Tensors) -> None:
    """One expert is in another format than the others."""
    for end in ("weight_packed", "weight_global_scale"):
        tensors.pop(f"{EXPERT}.{end}", None)
    tensors |= {
        f"{EXPERT}.{end}": part for end, part in fp8((0, 0), "_scale")(qwen_tensors()[f"{EXPERT}.weight"])[0].items()
    }


def as_wide(tensors: Tensors) -> None:
    for end in ("weight_packed", "weight_global_scale", "weight_scale", "weight_scale_2"):
        tensors.pop(f"{EXPERT}.{end}", None)
    tensors[f"{EXPERT}.weight"] = qwen_tensors()[f"{EXPERT}.weight"]


F32 = np.float32
CT, MO = "compressed-tensors", "modelopt"


@pytest.mark.parametrize(
    ("name", "change", "error", "message"),
    [
        (CT, scale_at(0), UnquantizableWeights, r"weight_scale: \[3, 1\] has the scale 0\.0"),
        (MO, scale_at(0), UnquantizableWeights, r"weight_scale: \[3, 1\] has the scale 0\.0"),
        (MO, scale_at(-1), UnquantizableWeights, r"weight_scale: \[3, 1\] has the scale -1"),
        (CT, scale_at(np.nan), UnquantizableWeights, r"weight_scale: \[3, 1\] has the scale nan"),
        ("mxfp4", scale_at(255, block=0), UnquantizableWeights, r"weight_scale: \[3, 0\] has the exponent 255"),
        (CT, put("weight_global_scale", np.zeros(1, F32)), UnquantizableWeights, "weight_global_scale: is 0.0"),
        (CT, put("weight_global_scale", np.full(1, np.inf, F32)), UnquantizableWeights, "weight_global_scale: is inf"),
        (MO, put("weight_scale_2", np.array(np.nan, F32)), UnquantizableWeights, "weight_scale_2: is nan"),
        (MO, put("weight_scale_2", np.array(-1, F32)), UnquantizableWeights, "weight_scale_2: is -1.0"),
        (MO, put("weight_scale_2", np.array(3e38, F32)), UnquantizableWeights, r"weight_scale: .* scale 3e\+38"),
        (
            CT,
            put("weight_global_scale", np.array(1e-44, F32)),
            UnquantizableWeights,
            r"weight_scale: .* scale 9.81e-45",
        ),
        (CT, put("weight_scale", np.ones((32, 1), F8)), MalformedCheckpoint, r"weight_scale: .*makes it \[32, 2\]"),
        (CT, put("weight_scale", np.ones((32, 2), F32)), MalformedCheckpoint, "is F32; .* makes it F8_E4M3"),
        (MO, put("weight_scale", np.ones((32, 2), np.uint8)), MalformedCheckpoint, "is U8; .* makes it F8_E4M3"),
        ("mxfp4", put("weight_scale", np.ones((32, 1), F8)), MalformedCheckpoint, "is F8_E4M3; .* makes it U8"),
        (CT, put("weight_packed", np.ones((32, 15), np.uint8)), MalformedCheckpoint, r"has shape \[32, 15\]"),
        (CT, put("weight_packed", np.ones((32, 16), np.int8)), MalformedCheckpoint, "is I8; .* makes it U8"),
        (MO, put("weight_scale_2", np.ones(32, F32)), MalformedCheckpoint, r"weight_scale_2: has shape \[32\]"),
        (CT, without("weight_global_scale"), MalformedCheckpoint, "weight_global_scale: is missing"),
        (MO, without("weight_scale_2"), MalformedCheckpoint, "weight_scale_2: is missing"),
        (CT, as_fp8, MalformedCheckpoint, "weight_packed: is missing"),
        (
            MO,
            as_fp8,
            MalformedCheckpoint,
            r"has shape \[32, 32\]; .* makes it \[32, 16\]|weight_scale_2: 1 .* no place",
        ),
        (CT, as_wide, MalformedCheckpoint, "weight_packed: is missing"),
        (MO, as_wide, MalformedCheckpoint, "weight_scale: is missing"),
        (MO, put("pre_quant_scale", np.ones(32, F32)), MalformedCheckpoint, "pre_quant_scale: 1 tensors .* no place"),
    ],
)
def test_tensors_that_are_wrong_are_refused_by_name(name, change, error, message: str, tmp_path: Path):
    tensors, _ = written(name)
    change(tensors)
    with pytest.raises(error, match=message):
        load(tmp_path / "m", tensors, QWEN_CONFIG, FORMATS[name][0])


def test_int8_rows_are_not_made_of_a_wrong_scale_either(tmp_path: Path):
    tensors, _ = written(CT)
    scale_at(np.nan)(tensors)
    with pytest.raises(UnquantizableWeights, match=r"weight_scale: \[3, 1\] has the scale nan"):
        load(tmp_path / "m", tensors, QWEN_CONFIG, FORMATS[CT][0], "cpu")


@pytest.mark.parametrize("name", FORMATS)
def test_columns_that_are_no_whole_blocks_are_refused_by_the_weight(name: str, tmp_path: Path):
    config = {**QWEN_CONFIG, "moe_intermediate_size": 25}
    with pytest.raises(MalformedCheckpoint, match=r"down_proj.weight: .*25 columns are not a multiple of the (16|32)"):
        load(tmp_path / "m", written(name)[0], config, FORMATS[name][0])


def test_a_host_without_jax_reads_the_same_numbers(tmp_path: Path):
    tensors, wide = written("modelopt")
    load(tmp_path / "m", tensors, QWEN_CONFIG, FORMATS["modelopt"][0])
    located = locate(str(tmp_path / "m"), LocalSource)
    config = read_config("m", located.hub_config)
    storage = kept_storage(config.layer_storage, Quantization.INT4, "cpu")
    specs = Decoder(replace(config, layer_storage=storage), FLOAT32).weight_specs()
    weights = load_on_host(located, specs, LIMITS).weights
    down, scale = weights["layers.1.expert_down"], weights["layers.1.expert_down.scale"]
    numbers = down.view(ml_dtypes.float4_e2m1fn).astype(F32).reshape(*scale.shape, 16) * scale[..., None]
    np.testing.assert_array_equal(numbers.reshape(down.shape)[2], wide[f"{EXPERT}.weight"])
    assert jnp.float4_e2m1fn == down.dtype
