"""Of quantized checkpoints W8A8-int8 is served; every other `quantization_config` is refused by the name of a field."""

import copy
from typing import Any

import pytest

from service.errors import UnsupportedModel
from service.models.quantization_config import has_int8_layers

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


def changed(path: str, value: Any) -> dict[str, Any]:
    config = copy.deepcopy(W8A8)
    *parents, last = path.split(".")
    inner = config
    for name in parents:
        inner = inner[name]
    inner[last] = value
    return config


def test_the_configuration_decides_and_its_absence_is_wide():
    assert has_int8_layers("m", {"quantization_config": W8A8})
    assert has_int8_layers("m", {"quantization_config": changed("ignore", []), "tie_word_embeddings": True})
    assert not has_int8_layers("m", {})
    assert not has_int8_layers("m", {"quantization_config": None})


GROUP = "config_groups.group_0"


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "quant_method = 'gptq'"),
        ({"quant_method": "awq", "bits": 4}, "quant_method = 'awq'"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "quant_method = 'fp8'"),
        ({"bits": 4}, "quant_method = None"),
        ("int8", "quantization_config = 'int8'"),
        ({}, "quant_method = None"),
        (changed("format", "float-quantized"), "format = 'float-quantized'"),
        (changed("format", "pack-quantized"), "format = 'pack-quantized'"),
        (changed("quantization_status", "calibration"), "quantization_status = 'calibration'"),
        (changed("kv_cache_scheme", ARGS), "kv_cache_scheme = "),
        (changed("config_groups", {}), "config_groups should be one group"),
        (changed("ignore", ["lm_head", "model.layers.0.mlp.down_proj"]), "ignore = "),
        (changed("ignore", []), "ignore = "),
        (changed(f"{GROUP}.targets", ["re:.*self_attn.*"]), "targets = "),
        (changed(f"{GROUP}.output_activations", ARGS), "output_activations = "),
        (changed(f"{GROUP}.input_activations", None), "input_activations = None"),
        (changed(f"{GROUP}.input_activations.dynamic", False), "input_activations.dynamic = False"),
        (changed(f"{GROUP}.input_activations.strategy", "tensor"), "input_activations.strategy = 'tensor'"),
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
        has_int8_layers("m", {"quantization_config": config})
    assert named in str(error.value)
    assert "Served are W8A8-int8 checkpoints" in str(error.value)


def test_an_older_key_is_refused_too():
    with pytest.raises(UnsupportedModel, match="compression_config is not served"):
        has_int8_layers("m", {"compression_config": W8A8})
