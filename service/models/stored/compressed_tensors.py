"""Checkpoints of compressed-tensors: W8A8-int8, FP8, packed integers of 4 or 8 bits, and floats of 4 bits.

Source: https://github.com/vllm-project/compressed-tensors (QuantizationConfig, QuantizationArgs; formats
`int-quantized`, `float-quantized`: `weight` [out, in] beside `weight_scale`; `pack-quantized`: `weight_packed`, signed
integers plus half of their range, the first in the lowest bits, `weight_scale`, `weight_zero_point` packed by outputs,
`weight_g_idx`, `weight_shape`; `nvfp4-pack-quantized` and `mxfp4-pack-quantized`: `weight_packed`, the earlier of two
numbers in the lower bits of a byte, `weight_scale` by group in float8_e4m3fn or as exponents plus 127, and of NVFP4
`weight_global_scale`, by which `dequantize` divides that of a group)
"""

from collections.abc import Mapping, Sequence
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
from service.models.stored.layers import MXFP4_BLOCK, NVFP4_BLOCK, Encoding, LayerStorage
from service.models.stored.modules import LM_HEAD, ignored

LINEAR = "Linear"  # the class of all linear layers, as a target
ABSENT = (None, {}, [], False)
ENCODINGS = {
    "int-quantized": Encoding.INT8,
    "float-quantized": Encoding.FP8,
    "pack-quantized": Encoding.PACKED,
    "nvfp4-pack-quantized": Encoding.NVFP4,
    "mxfp4-pack-quantized": Encoding.MXFP4_PACKED,
}
# `kv_cache_scheme` is not among them: a cache here has scales of its own, or none.
METHOD: Accepted = {
    "quantization_status": ("compressed", "frozen", None),
    "sparsity_config": ABSENT,
    "transform_config": ABSENT,
}
INT8: Accepted = {"num_bits": (8,), "type": ("int",), "symmetric": (True,), "actorder": (None,)}
FP8: Accepted = {"num_bits": (8,), "type": ("float",), "symmetric": (True,), "actorder": (None,)}
PLAIN: Accepted = {"block_structure": (None,), "dynamic": (False, None)}
FP4: Accepted = {"num_bits": (4,), "type": ("float",), "symmetric": (True,), "actorder": (None,), **PLAIN}
BLOCKED: Accepted = {**FP8, "strategy": ("block",), "dynamic": (False, None)}
WEIGHTS: Mapping[Encoding, Accepted] = {
    Encoding.INT8: {**INT8, **PLAIN, "strategy": ("channel",), "group_size": (None, -1)},
    Encoding.FP8: {**FP8, **PLAIN, "strategy": ("tensor", "channel"), "group_size": (None, -1)},
    Encoding.PACKED: {
        **PLAIN,
        **{"num_bits": (4, 8), "type": ("int",), "symmetric": (True, False)},
        **{"strategy": ("group", "channel"), "actorder": (None, "weight", "static", "group")},
    },
    Encoding.NVFP4: {
        **FP4,
        **{"strategy": ("tensor_group",), "group_size": (NVFP4_BLOCK,)},
        "scale_dtype": ("torch.float8_e4m3fn", None),
    },
    Encoding.MXFP4_PACKED: {
        **FP4,
        **{"strategy": ("group",), "group_size": (MXFP4_BLOCK,), "scale_dtype": ("torch.uint8", None)},
    },
}
# Of activations: here they are quantized by token or not at all, which loses less than their own static scales, or
# those of groups. So their strategy decides nothing, but it must be of the same type as the weights. By weights in FP4
# they are multiplied as they are, whatever their type.
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
    sparsity = config.get("sparsity_config")
    is_dense = isinstance(sparsity, Mapping) and sparsity.get("format") == "dense"
    check_fields(uri, KEY, {**config, "sparsity_config": None} if is_dense else config, METHOD)
    groups = config.get("config_groups")
    if not isinstance(groups, Mapping) or not groups:
        raise refusal(uri, f"{KEY}.config_groups should be one group of layers or several, and is {groups!r}")
    read = {name: _read_group(uri, f"{KEY}.config_groups.{name}", group, config) for name, group in groups.items()}
    encodings = {storage.encoding for storage, _ in read.values()}
    if len(encodings) > 1 and Encoding.INT8 in encodings:
        raise refusal(
            uri, f"{KEY}.config_groups have int-quantized layers beside others, which are not served together"
        )
    rules: list[tuple[str, LayerStorage | None]] = [*read_wide(uri, f"{KEY}.ignore", config.get("ignore"), ignored)]
    rules += [(pattern, storage) for storage, patterns in read.values() for pattern in patterns]
    of_all = [storage for storage, patterns in read.values() if not patterns]
    if len(of_all) > 1:
        raise refusal(uri, f"{KEY}.config_groups has several groups of all linear layers")
    if not of_all:
        rules.append((".*", None))
    storage = replace(of_all[0] if of_all else next(iter(read.values()))[0], rules=tuple(rules))
    if storage.holds(f"{LM_HEAD}.weight") and not is_tied:
        raise refusal(uri, f"{KEY}.ignore = {config.get('ignore')!r} is not served; it should have {LM_HEAD}")
    return storage


def _read_group(uri: str, path: str, group: Any, config: Mapping[str, Any]) -> tuple[LayerStorage, Sequence[str]]:
    """Return how a group's layers are stored, and the patterns of their names; no pattern for all linear layers."""
    check_fields(uri, path, group, {"output_activations": (None,)})
    weights, activations, targets = group.get("weights"), group.get("input_activations"), group.get("targets")
    if not isinstance(targets, list) or not targets or not all(isinstance(target, str) for target in targets):
        raise refusal(uri, f"{path}.targets = {targets!r} is not served")
    # A class of layers begins with a capital letter, and no module of a model does.
    if others := [target for target in targets if target[:1].isupper() and target != LINEAR]:
        raise refusal(uri, f"{path}.targets has {others[0]!r}, which is not served; of classes only {LINEAR!r}")
    encoding = _encoding(uri, path, group.get("format") or config.get("format"), weights)
    is_blocked = encoding is Encoding.FP8 and isinstance(weights, Mapping) and weights.get("strategy") == "block"
    check_fields(uri, f"{path}.weights", weights, BLOCKED if is_blocked else WEIGHTS[encoding])
    if encoding is Encoding.PACKED and activations is not None:
        raise refusal(uri, f"{path}.input_activations = {activations!r} is not served")
    if encoding is Encoding.INT8 or (encoding is Encoding.FP8 and activations is not None):
        check_fields(uri, f"{path}.input_activations", activations, ACTIVATIONS[encoding])
    named = [] if LINEAR in targets else read_wide(uri, f"{path}.targets", targets, ignored)
    return _layer_storage(uri, f"{path}.weights", encoding, weights), [pattern for pattern, _ in named]


def _encoding(uri: str, path: str, form: Any, weights: Any) -> Encoding:
    """Return the encoding of a format, or of the type of the weights where older versions do not name one."""
    if isinstance(form, str) and form in ENCODINGS:
        return ENCODINGS[form]
    of_type = {"int": Encoding.INT8, "float": Encoding.FP8}
    kind = weights.get("type") if isinstance(weights, Mapping) else None
    if form == "naive-quantized" and isinstance(kind, str) and kind in of_type:
        return of_type[kind]
    raise refusal(uri, f"{path}.format = {form!r} is not served")


def _layer_storage(uri: str, path: str, encoding: Encoding, weights: Mapping[str, Any]) -> LayerStorage:
    if encoding in (Encoding.NVFP4, Encoding.MXFP4_PACKED):
        return LayerStorage(encoding, 4, (1, weights["group_size"]), is_divided=encoding is Encoding.NVFP4)
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
