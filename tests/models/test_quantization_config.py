"""Each stored format is read as its `quantization_config` says; what is not served is refused by the field."""

import copy
from typing import Any

import pytest

from service.errors import UnsupportedModel
from service.models.quantization_config import read_layer_storage
from service.models.stored.layers import Encoding, LayerStorage
from service.models.stored.modules import inside
from tests.checkpoint.quantized_formats import FORMATS, fp4_config, modelopt_config

ARGS = {"num_bits": 8, "type": "int", "symmetric": True, "group_size": None, "block_structure": None}
W8A8: dict[str, Any] = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "global_compression_ratio": 1.24,
    "ignore": ["lm_head"],
    "kv_cache_scheme": None,
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {**ARGS, "strategy": "channel", "dynamic": False, "observer": "minmax"},
            "input_activations": {**ARGS, "strategy": "token", "dynamic": True},
            "output_activations": None,
        }
    },
}


HEAD = ((inside("lm_head"), None),)


def changed(path: str, value: Any) -> dict[str, Any]:
    config = copy.deepcopy(W8A8)
    *parents, last = path.split(".")
    inner = config
    for name in parents:
        inner = inner[name]
    inner[last] = value
    return config


def read(config: Any, **values: Any) -> LayerStorage | None:
    return read_layer_storage("m", {"quantization_config": config, **values})


def test_the_configuration_decides_and_its_absence_is_wide():
    assert read(W8A8) == LayerStorage(Encoding.INT8, rules=HEAD)
    assert read(changed("ignore", []), tie_word_embeddings=True) == LayerStorage(Encoding.INT8)
    assert read(None) is read_layer_storage("m", {}) is None


def config_of(name: str, **fields: Any) -> dict[str, Any]:
    return FORMATS[name][0] | fields


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (config_of("fp8 by tensor"), LayerStorage(Encoding.FP8, block=(None, None), rules=HEAD)),
        (
            config_of("fp8 in blocks"),
            LayerStorage(Encoding.FP8, 8, (96, 128), scale_suffix="_scale_inv", rules=HEAD),
        ),
        (
            config_of("w4a16 asymmetric"),
            LayerStorage(Encoding.PACKED, 4, (1, 64), has_zeros=True, rules=HEAD),
        ),
        (config_of("nvfp4"), LayerStorage(Encoding.NVFP4, 4, (1, 16), is_divided=True, rules=HEAD)),
        (config_of("nvfp4 of modelopt"), LayerStorage(Encoding.NVFP4, 4, (1, 16), rules=(*HEAD, *HEAD))),
        (config_of("fp8 in blocks of modelopt"), LayerStorage(Encoding.FP8, 8, (128, 128), rules=(*HEAD, *HEAD))),
        (config_of("awq", group_size=-1), LayerStorage(Encoding.AWQ, 4, has_zeros=True, rules=HEAD)),
        (
            config_of("gptq with desc_act"),
            LayerStorage(
                *(Encoding.GPTQ, 4, (1, 64)),
                **{"has_zeros": True, "is_zero_less_one": True, "has_order": True, "rules": HEAD},
            ),
        ),
    ],
    ids=lambda value: "" if isinstance(value, dict) else value.encoding,
)
def test_a_format_is_as_its_configuration_says(config: dict[str, Any], expected: LayerStorage):
    assert read(config) == expected


def test_a_name_of_a_module_holds_for_the_modules_in_it_and_for_no_other():
    storage = LayerStorage(Encoding.FP8, rules=((inside("model.layers.1"), None),))
    assert not storage.holds("model.layers.1.mlp.up_proj.weight")
    assert storage.holds("model.layers.11.mlp.up_proj.weight")


@pytest.mark.parametrize("prefix", ["", "model.", "model.language_model.", "language_model.model."])
@pytest.mark.parametrize(
    "weight", ["model.layers.0.mlp.up_proj.weight", "language_model.model.layers.0.mlp.up_proj.weight"]
)
def test_the_name_of_a_module_may_be_that_in_a_model_with_images(prefix: str, weight: str):
    storage = LayerStorage(Encoding.NVFP4, rules=((inside(f"{prefix}layers.0.mlp.up_proj"), None),))
    assert not storage.holds(weight)
    assert storage.holds(weight.replace("up_proj", "down_proj"))


GROUP = "config_groups.group_0"
UNSERVED_ALGORITHMS = (
    *("W4A8_AWQ", "W4A16_AWQ", "NVFP4_AWQ", "NVFP4_SVD", "W4A8_NVFP4_FP8", "W4A8_MXFP4_FP8", "MXFP8"),
    *("W8A8_SQ_PER_CHANNEL", "nvfp5"),
)


def fp4(form: str, weights: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    config = fp4_config(f"{form}-pack-quantized", activations=True) | fields
    config["config_groups"]["group_0"]["weights"] |= weights or {}
    return config


def mixed(layers: Any) -> dict[str, Any]:
    return modelopt_config("MIXED_PRECISION", quantized_layers=layers)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "quant_method = 'bitsandbytes', fp4"),
        (config_of("gptq", bits=3), "bits = 3"),
        (config_of("gptq", bits=True), "bits = True"),
        (config_of("gptq", group_size=0), "group_size = 0"),
        (config_of("gptq", desc_act="yes"), "desc_act = 'yes'"),
        (config_of("gptq", lm_head=True), "lm_head = True"),
        (config_of("gptq", checkpoint_format="marlin"), "checkpoint_format = 'marlin'"),
        (config_of("gptq", dynamic={"+:.*": {"bits": 2}}), "dynamic.+:.*.bits = 2"),
        (config_of("gptq", dynamic={"-:(": {}}), "dynamic has '-:(', which is no regular expression"),
        (config_of("gptq", modules_in_block_to_quantize="mlp"), "modules_in_block_to_quantize = 'mlp'"),
        (config_of("awq", version="gemv"), "version = 'gemv'"),
        (config_of("awq", zero_point=False), "zero_point = False"),
        (config_of("awq", modules_to_not_convert="lm_head"), "modules_to_not_convert = 'lm_head'"),
        (config_of("fp8 in blocks", fmt="e5m2"), "fmt = 'e5m2'"),
        (config_of("fp8 in blocks", activation_scheme="none"), "activation_scheme = 'none'"),
        (config_of("fp8 in blocks", weight_block_size=[128, 0]), "weight_block_size = [128, 0]"),
        (config_of("w4a16", ignore=["re:(lm_head"]), "ignore has 're:(lm_head', which is no regular expression"),
        (config_of("w4a16", ignore=[]), "ignore = []"),
        (config_of("fp8 by row", format="int-quantized"), "weights.type = 'float'"),
        ({"bits": 4}, "quant_method = None"),
        ("int8", "quantization_config = 'int8'"),
        (changed("format", "float-quantized"), "weights.type = 'int'"),
        (changed("format", "pack-quantized"), "input_activations = {"),
        (changed("format", "marlin-24"), "format = 'marlin-24'"),
        (changed("quantization_status", "calibration"), "quantization_status = 'calibration'"),
        (changed("config_groups", {}), "config_groups should be one group"),
        (changed("format", "nvfp4-pack-quantized"), "weights.num_bits = 8"),
        (fp4("nvfp4", weights={"group_size": 32}), "weights.group_size = 32"),
        (fp4("nvfp4", weights={"symmetric": False}), "weights.symmetric = False"),
        (fp4("nvfp4", weights={"strategy": "group"}), "weights.strategy = 'group'"),
        (fp4("nvfp4", weights={"scale_dtype": "torch.uint8"}), "weights.scale_dtype = 'torch.uint8'"),
        (fp4("nvfp4", transform_config={"config_groups": {"R1": {}}}), "transform_config = "),
        (fp4("mxfp4", weights={"group_size": 16}), "weights.group_size = 16"),
        (fp4("mxfp4", weights={"scale_dtype": "torch.float8_e4m3fn"}), "weights.scale_dtype = "),
        (modelopt_config("NVFP4", group_size=32), "quantization_config.group_size = 32"),
        (modelopt_config("NVFP4", pre_quant_scale=True), "pre_quant_scale = True"),
        (modelopt_config("NVFP4", nvfp4_embed=True), "nvfp4_embed = True"),
        *((modelopt_config(name), f"quant_algo = '{name}'") for name in UNSERVED_ALGORITHMS),
        (modelopt_config(None), "quant_algo = None"),
        (modelopt_config("MIXED_PRECISION"), "quantized_layers = None should name the layers"),
        (mixed({"model.layers.0.mlp": {"quant_algo": "W4A8_AWQ"}}), "model.layers.0.mlp.quant_algo = 'W4A8_AWQ'"),
        (mixed({"model.layers.0.mlp": "FP8"}), "quantized_layers.model.layers.0.mlp = 'FP8'"),
        (mixed({"lm_head": {"quant_algo": "FP8"}}), "quantized_layers has lm_head"),
        ({"quant_method": "hqq"}, "quantized by HQQ (quantization_config.quant_method = 'hqq'), which is not served"),
        ({"quant_method": "torchao"}, "torchao"),
        ({"quant_method": "eetq"}, "EETQ (int8)"),
        (changed("ignore", []), "ignore = "),
        (changed(f"{GROUP}.targets", []), "targets = "),
        (changed(f"{GROUP}.output_activations", ARGS), "output_activations = "),
        (changed(f"{GROUP}.input_activations", None), "input_activations = None"),
        (changed(f"{GROUP}.input_activations.num_bits", 4), "input_activations.num_bits = 4"),
        (changed(f"{GROUP}.weights.num_bits", 4), "weights.num_bits = 4"),
        (changed(f"{GROUP}.weights.type", "float"), "weights.type = 'float'"),
        (changed(f"{GROUP}.weights.strategy", "group"), "weights.strategy = 'group'"),
        (changed(f"{GROUP}.weights.group_size", 128), "weights.group_size = 128"),
        (changed(f"{GROUP}.weights.symmetric", False), "weights.symmetric = False"),
        (changed(f"{GROUP}.weights.symmetric", 1), "weights.symmetric = 1"),
        (changed(f"{GROUP}.weights.actorder", "static"), "weights.actorder = 'static'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_not_served_is_refused_by_name(config: Any, named: str):
    with pytest.raises(UnsupportedModel, match=r"m: config\.json: ") as error:
        read(config)
    assert named in str(error.value)
    assert "Served are checkpoints of compressed-tensors (W8A8-int8" in str(error.value)


def test_the_first_name_of_the_key_counts_too():
    former = {key: value for key, value in W8A8.items() if key != "quant_method"}
    assert read_layer_storage("m", {"compression_config": former}) == read(W8A8)
