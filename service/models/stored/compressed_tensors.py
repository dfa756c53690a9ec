"""Checkpoints of compressed-tensors: W8A8-int8, FP8, and integers of 4 or 8 bits that are packed in words.

Source: https://github.com/vllm-project/compressed-tensors (QuantizationConfig, QuantizationArgs; formats
`int-quantized`, `float-quantized`: `weight` [out, in] beside `weight_scale`; `pack-quantized`: `weight_packed`, signed
integers plus half of their range, the first in the lowest bits, `weight_scale`, `weight_zero_point` packed by outputs,
`weight_g_idx`, `weight_shape`)
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.models.stored.fields import (
    KEY,
    Accepted,
    check_fields,
    read_group_size,
    read_wide,
    refusal,
)
from service.models.stored.layers import Encoding, LayerStorage
from service.models.stored.modules import LM_HEAD, ignored

ABSENT = (None, {}, [], False)
ENCODINGS = {"int-quantized": Encoding.INT8, "float-quantized": Encoding.FP8, "pack-quantized": Encoding.PACKED}
# `kv_cache_scheme` is not among them: a cache here has scales of its own, or none.
METHOD: Accepted = {
    "format": tuple(ENCODINGS),
    "quantization_status": ("compressed", "frozen", None),
    "sparsity_config": ABSENT,
    "transform_config": ABSENT,
}
INT8: Accepted = {"num_bits": (8,), "type": ("int",), "symmetric": (True,), "actorder": (None,)}
FP8: Accepted = {"num_bits": (8,), "type": ("float",), "symmetric": (True,), "actorder": (None,)}
PLAIN: Accepted = {"block_structure": (None,), "dynamic": (False, None)}
BLOCKED: Accepted = {**FP8, "strategy": ("block",), "dynamic": (False, None)}
WEIGHTS: Mapping[Encoding, Accepted] = {
    Encoding.INT8: {**INT8, **PLAIN, "strategy": ("channel",), "group_size": (None, -1)},
    Encoding.FP8: {**FP8, **PLAIN, "strategy": ("tensor", "channel"), "group_size": (None, -1)},
    Encoding.PACKED: {
        **PLAIN,
        **{"num_bits": (4, 8), "type": ("int",), "symmetric": (True, False)},
        **{"strategy": ("group", "channel"), "actorder": (None, "weight", "static", "group")},
    },
}
# Of activations: here they are quantized by token or not at all, which loses less than their own static scales, or
# those of groups. So their strategy decides nothing, but it must be of the same type as the weights.
ACTIVATIONS: Mapping[Encoding, Accepted] = {
    Encoding.INT8: {"num_bits": (8,), "type": ("int",)},
    Encoding.FP8: {"num_bits": (8,), "type": ("float",)},
}


def read_compressed_tensors(uri: str, config: Mapping[str, Any], *, is_tied: bool) -> LayerStorage:
    """Read a configuration of compressed-tensors.

    Args:
        uri: the checkpoint's address, for messages.
        config: the value of `quantization_config`.
        is_tied: whether the unembedding is the embedding.

    Raises:
        UnsupportedModel: a field asks for something that is not served.
    """
    check_fields(uri, KEY, config, METHOD)
    encoding = ENCODINGS[config["format"]]
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or len(groups) != 1:
        raise refusal(uri, f"{KEY}.config_groups should be one group")
    [(name, group)] = groups.items()
    path = f"{KEY}.config_groups.{name}"
    fields: Accepted = {"targets": (["Linear"],), "output_activations": (None,), "format": (config["format"], None)}
    check_fields(uri, path, group, fields)
    weights, activations = group.get("weights"), group.get("input_activations")
    is_blocked = encoding is Encoding.FP8 and isinstance(weights, Mapping) and weights.get("strategy") == "block"
    check_fields(uri, f"{path}.weights", weights, BLOCKED if is_blocked else WEIGHTS[encoding])
    if encoding is Encoding.PACKED and activations is not None:
        raise refusal(uri, f"{path}.input_activations = {activations!r} is not served")
    if encoding is Encoding.INT8 or (encoding is Encoding.FP8 and activations is not None):
        check_fields(uri, f"{path}.input_activations", activations, ACTIVATIONS[encoding])
    rules = read_wide(uri, f"{KEY}.ignore", config.get("ignore"), ignored)
    storage = _layer_storage(uri, f"{path}.weights", encoding, weights)
    if replace(storage, rules=rules).holds(f"{LM_HEAD}.weight") and not is_tied:
        raise refusal(uri, f"{KEY}.ignore = {config.get('ignore')!r} is not served; it should have {LM_HEAD}")
    return replace(storage, rules=rules)


def _layer_storage(uri: str, path: str, encoding: Encoding, weights: Mapping[str, Any]) -> LayerStorage:
    if encoding is not Encoding.PACKED:
        match weights["strategy"]:
            case "tensor":
                return LayerStorage(encoding, block=(None, None))
            case "block":
                return LayerStorage(encoding, block=read_block(uri, f"{path}.block_structure", weights))
            case _:
                return LayerStorage(encoding)
    in_groups = weights["strategy"] == "group"
    if not in_groups and weights.get("group_size") not in (None, -1):
        raise refusal(uri, f"{path}.group_size = {weights['group_size']!r} contradicts strategy = 'channel'")
    group_size = read_group_size(uri, f"{path}.group_size", weights.get("group_size")) if in_groups else None
    return LayerStorage(
        encoding,
        weights["num_bits"],
        (1, group_size),
        has_zeros=not weights["symmetric"],
        has_order=weights.get("actorder") == "group",
    )


def read_block(uri: str, path: str, weights: Mapping[str, Any]) -> tuple[int, int]:
    """Return the rows and columns that share a scale.

    Raises:
        UnsupportedModel: they are not two positive integers.
    """
    block = weights.get(path.rpartition(".")[2])
    if not isinstance(block, list) or len(block) != 2 or not all(type(n) is int and n > 0 for n in block):
        raise refusal(uri, f"{path} = {block!r} should be two positive integers")
    return block[0], block[1]
