"""The `quantization_config` of a `config.json`: the stored formats that are served; all others are refused by name.

Source: https://github.com/vllm-project/compressed-tensors (QuantizationConfig, QuantizationArgs; format
`int-quantized`: `weight` int8 [out, in] beside `weight_scale` [out, 1])
"""

from collections.abc import Iterator, Mapping
from typing import Any

from service.errors import UnsupportedModel

KEY = "quantization_config"
INT8 = {"num_bits": (8,), "type": ("int",), "symmetric": (True,), "block_structure": (None,), "actorder": (None,)}
ABSENT = (None, {}, [], False)
# What W8A8-int8 says, by place; a key that is missing counts as None.
METHOD: Mapping[str, tuple[Any, ...]] = {
    "quant_method": ("compressed-tensors",),
    "format": ("int-quantized",),
    "quantization_status": ("compressed", "frozen", None),
    "kv_cache_scheme": ABSENT,
    "sparsity_config": ABSENT,
    "transform_config": ABSENT,
}
GROUP: Mapping[str, tuple[Any, ...]] = {
    "targets": (["Linear"],),
    "output_activations": (None,),
    "format": ("int-quantized", None),
}
WEIGHTS = {**INT8, "strategy": ("channel",), "dynamic": (False, None), "group_size": (None, -1)}
ACTIVATIONS = {**INT8, "strategy": ("token",), "dynamic": (True,), "group_size": (None,)}
SERVED = "Served are W8A8-int8 checkpoints of compressed-tensors, and checkpoints that are not quantized."


def has_int8_layers(uri: str, values: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint's linear layers are int8 with a scale for each row.

    Args:
        uri: the checkpoint's address, for messages.
        values: those of `config.json`.

    Raises:
        UnsupportedModel: the weights are quantized in another way; names the field.
    """
    if values.get("compression_config") is not None:
        raise UnsupportedModel(uri, f"config.json: compression_config is not served. {SERVED}")
    config = values.get(KEY)
    if config is None:
        return False
    _check(uri, KEY, config, METHOD)
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        raise UnsupportedModel(uri, f"config.json: {KEY}.config_groups should be one group. {SERVED}")
    [(name, group)] = groups.items()
    path = f"{KEY}.config_groups.{name}"
    _check(uri, path, group, GROUP)
    _check(uri, f"{path}.weights", group.get("weights"), WEIGHTS)
    _check(uri, f"{path}.input_activations", group.get("input_activations"), ACTIVATIONS)
    is_tied = bool(values.get("tie_word_embeddings"))
    wide = config.get("ignore") or []
    if wide != ["lm_head"] and not (is_tied and wide == []):
        raise UnsupportedModel(uri, f"config.json: {KEY}.ignore = {wide!r} is not served; only ['lm_head']. {SERVED}")
    return True


def _check(uri: str, path: str, found: Any, accepted: Mapping[str, tuple[Any, ...]]) -> None:
    if not isinstance(found, Mapping):
        raise UnsupportedModel(uri, f"config.json: {path} = {found!r} is not served. {SERVED}")
    for key, value in _differences(found, accepted):
        raise UnsupportedModel(uri, f"config.json: {path}.{key} = {value!r} is not served. {SERVED}")


def _differences(found: Mapping[str, Any], accepted: Mapping[str, tuple[Any, ...]]) -> Iterator[tuple[str, Any]]:
    for key, values in accepted.items():
        value = found.get(key)
        if not any(type(value) is type(each) and value == each for each in values):
            yield key, value
