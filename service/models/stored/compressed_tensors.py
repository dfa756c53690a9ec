"""Checkpoints of compressed-tensors: W8A8-int8, FP8, and integers of 4 or 8 bits that are packed in words.

Source: https://github.com/vllm-project/compressed-tensors (QuantizationConfig, QuantizationArgs; formats
`int-quantized`, `float-quantized`: `weight` [out, in] beside `weight_scale`; `pack-quantized`: `weight_packed`, signed
integers plus half of their range, the first in the lowest bits, `weight_scale`, `weight_zero_point` packed by outputs,
`weight_g_idx`, `weight_shape`)
"""

from collections.abc import Mapping
from typing import Any

from service.models.stored.fields import (
    KEY,
    Accepted,
    check_fields,
    read_group_size,
    read_modules,
    refusal,
)
from service.models.stored.layers import Encoding, LayerStorage

ABSENT = (None, {}, [], False)
ENCODINGS = {"int-quantized": Encoding.INT8, "float-quantized": Encoding.FP8, "pack-quantized": Encoding.PACKED}
METHOD: Accepted = {
    "format": tuple(ENCODINGS),
    "quantization_status": ("compressed", "frozen", None),
    "kv_cache_scheme": ABSENT,
    "sparsity_config": ABSENT,
    "transform_config": ABSENT,
}
INT8: Accepted = {"num_bits": (8,), "type": ("int",), "symmetric": (True,), "actorder": (None,)}
FP8: Accepted = {"num_bits": (8,), "type": ("float",), "symmetric": (True,), "actorder": (None,)}
PLAIN: Accepted = {"block_structure": (None,), "dynamic": (False, None)}
WEIGHTS: Mapping[Encoding, Accepted] = {
    Encoding.INT8: {**INT8, **PLAIN, "strategy": ("channel",), "group_size": (None, -1)},
    Encoding.FP8: {**FP8, **PLAIN, "strategy": ("tensor", "channel"), "group_size": (None, -1)},
    Encoding.PACKED: {
        **PLAIN,
        **{"num_bits": (4, 8), "type": ("int",), "symmetric": (True, False)},
        **{"strategy": ("group", "channel"), "actorder": (None, "weight", "static", "group")},
    },
}
TOKEN: Accepted = {"strategy": ("token",), "dynamic": (True,), "block_structure": (None,), "group_size": (None,)}


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
    check_fields(uri, f"{path}.weights", weights, WEIGHTS[encoding])
    if encoding is not Encoding.PACKED:
        served = {**(INT8 if encoding is Encoding.INT8 else FP8), **TOKEN}
        check_fields(uri, f"{path}.input_activations", activations, served)
    elif activations is not None:
        raise refusal(uri, f"{path}.input_activations = {activations!r} is not served")
    wide = read_modules(uri, f"{KEY}.ignore", config.get("ignore"))
    is_exact = wide == ("lm_head",) or (is_tied and wide == ())
    if not (is_exact or (encoding is not Encoding.INT8 and (is_tied or "lm_head" in wide))):
        raise refusal(uri, f"{KEY}.ignore = {list(wide)!r} is not served; it should have lm_head")
    return _layer_storage(uri, f"{path}.weights", encoding, weights, wide)


def _layer_storage(
    uri: str, path: str, encoding: Encoding, weights: Mapping[str, Any], wide: tuple[str, ...]
) -> LayerStorage:
    if encoding is not Encoding.PACKED:
        block = (None, None) if weights["strategy"] == "tensor" else (1, None)
        return LayerStorage(encoding, block=block, wide_modules=wide)
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
        wide_modules=wide,
    )
