"""The quantization methods other than compressed-tensors: FP8, ModelOpt, AWQ, GPTQ and MXFP4."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.models.stored.compressed_tensors import read_block
from service.models.stored.fields import KEY, Accepted, check_fields, read_flag, read_group_size, read_wide, refusal
from service.models.stored.layers import MXFP4_BLOCK, NVFP4_BLOCK, Encoding, LayerStorage
from service.models.stored.modules import LM_HEAD, anywhere, at_either_end, inside, is_pattern

MIXED = "MIXED_PRECISION"
FP8_BLOCK = 128  # rows and columns of ModelOpt's blocks
ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "FP8_PB_WO", "NVFP4", "W4A16_NVFP4")
MODELOPT: Accepted = {"quant_algo": ALGORITHMS, "pre_quant_scale": (False, None), "has_zero_point": (False, None)}

_HEAD = ((inside(LM_HEAD), None),)


def read_fp8(uri: str, config: Mapping[str, Any]) -> LayerStorage:
    """Read FP8 with a scale of each block, as DeepSeek and Qwen publish it, or of each tensor, as AutoFP8 does.

    Weights are dequantized, so `activation_scheme` changes nothing: the scales of static activations are left out, and
    activations are rounded less than the checkpoint's own or not at all.

    Raises:
        UnsupportedModel: a field asks for something that is not served.
    Source: https://huggingface.co/deepseek-ai/DeepSeek-V3/blob/main/README_WEIGHTS.md (FP8 weight documentation);
        https://github.com/neuralmagic/AutoFP8 (`weight_scale`); transformers `integrations/finegrained_fp8.py`, which
        writes `weight_block_size` even where it is null, and multiplies by `weight_scale_inv`
    """
    check_fields(uri, KEY, config, {"fmt": ("e4m3", None), "activation_scheme": ("dynamic", "static", None)})
    wide = [
        rule
        for key in ("modules_to_not_convert", "ignored_layers")
        for rule in read_wide(uri, f"{KEY}.{key}", config.get(key), at_either_end)
    ]
    if config.get("weight_block_size") is None:
        suffix = "_scale_inv" if "weight_block_size" in config else "_scale"
        return LayerStorage(Encoding.FP8, block=(None, None), scale_suffix=suffix, rules=(*_HEAD, *wide))
    block = read_block(uri, f"{KEY}.weight_block_size", config)
    return LayerStorage(Encoding.FP8, block=block, scale_suffix="_scale_inv", rules=(*_HEAD, *wide))


def read_fbgemm_fp8(uri: str, config: Mapping[str, Any]) -> LayerStorage:
    """Read FP8 with a scale of each row, as Meta publishes Llama 3.1 405B: `weight_scale` [out, 1].

    Raises:
        UnsupportedModel: a field asks for something that is not served.
    Source: transformers `integrations/fbgemm_fp8.py` (FbgemmFp8Linear)
    """
    wide = read_wide(uri, f"{KEY}.modules_to_not_convert", config.get("modules_to_not_convert"), at_either_end)
    return LayerStorage(Encoding.FP8, rules=(*_HEAD, *wide))


def read_modelopt(uri: str, config: Mapping[str, Any]) -> LayerStorage:
    """Read what NVIDIA ModelOpt exports in FP8 and NVFP4, and globs of modules that are not quantized.

    Raises:
        UnsupportedModel: the algorithm is another one, or a field asks for something that is not served.
    Source: https://github.com/NVIDIA/Model-Optimizer (`export/quant_utils.py`: process_layer_quant_config;
        `quantization/qtensor/nvfp4_tensor.py`: `weight` holds the earlier of two numbers in the lower bits, and
        `dequantize` multiplies by `weight_scale` and `weight_scale_2`); vLLM `quantization/modelopt.py`
    """
    inner = config.get("quantization")
    fields = {**config, **inner} if isinstance(inner, Mapping) else config
    check_fields(uri, KEY, fields, {"nvfp4_embed": (None, False)})
    wide = [
        rule
        for key in ("exclude_modules", "ignore")
        for rule in read_wide(uri, f"{KEY}.{key}", fields.get(key), inside)
    ]
    if fields.get("quant_algo") != MIXED:
        return replace(_modelopt_storage(uri, KEY, fields), rules=(*_HEAD, *wide))
    layers, path = fields.get("quantized_layers"), f"{KEY}.quantized_layers"
    if not isinstance(layers, Mapping) or not layers:
        raise refusal(uri, f"{path} = {layers!r} should name the layers that are quantized")
    if LM_HEAD in layers:
        raise refusal(uri, f"{path} has {LM_HEAD}, which is not served in fewer bits")
    read = {name: _modelopt_storage(uri, f"{path}.{name}", layer) for name, layer in layers.items()}
    rules = [*_HEAD, *wide, *((inside(name), storage) for name, storage in read.items()), (".*", None)]
    return replace(next(iter(read.values())), rules=tuple(rules))


def _modelopt_storage(uri: str, path: str, fields: Any) -> LayerStorage:
    """Return the storage of layers by an algorithm's name, which older releases of ModelOpt write in small letters."""
    algorithm = fields.get("quant_algo") if isinstance(fields, Mapping) else None
    name = algorithm.upper() if isinstance(algorithm, str) and algorithm.upper() in ALGORITHMS else algorithm
    check_fields(uri, path, {**fields, "quant_algo": name} if isinstance(fields, Mapping) else fields, MODELOPT)
    if name in ("NVFP4", "W4A16_NVFP4"):
        check_fields(uri, path, fields, {"group_size": (NVFP4_BLOCK, None)})
        return LayerStorage(Encoding.NVFP4, 4, (1, NVFP4_BLOCK))
    block: tuple[int | None, int | None] = (None, None)
    if name == "FP8_PER_CHANNEL_PER_TOKEN":
        block = (1, None)
    elif name == "FP8_PB_WO":
        check_fields(uri, path, fields, {"group_size": (FP8_BLOCK, None)})
        block = (FP8_BLOCK, FP8_BLOCK)
    return LayerStorage(Encoding.FP8, block=block)


def read_awq(uri: str, config: Mapping[str, Any]) -> LayerStorage:
    """Read AWQ: `qweight` [in, out / 8], `qzeros` [groups, out / 8], `scales` [groups, out].

    Raises:
        UnsupportedModel: a field asks for something that is not served.
    Source: https://github.com/casper-hansen/AutoAWQ/blob/main/awq/modules/linear/gemm.py (WQLinear_GEMM)
    """
    version = config.get("version", "gemm")
    if not isinstance(version, str) or version.lower() != "gemm":
        raise refusal(uri, f"{KEY}.version = {version!r} is not served; only 'gemm'")
    # In `quant_config.json`, and in `quantization_config` by name.
    renamed = {"bits": config.get("bits", config.get("w_bit")), "zero_point": config.get("zero_point", True)}
    check_fields(uri, KEY, renamed, {"bits": (4,), "zero_point": (True,)})
    wide = read_wide(uri, f"{KEY}.modules_to_not_convert", config.get("modules_to_not_convert"), anywhere)
    group_size = read_group_size(uri, f"{KEY}.group_size", config.get("group_size", config.get("q_group_size")))
    return LayerStorage(Encoding.AWQ, 4, (1, group_size), has_zeros=True, rules=(*_HEAD, *wide))


def read_gptq(uri: str, config: Mapping[str, Any]) -> LayerStorage:
    """Read GPTQ: `qweight` [in / n, out], `qzeros` [groups, out / n], `scales` [groups, out], `g_idx` [in].

    Raises:
        UnsupportedModel: a field asks for something that is not served.
    Source: https://github.com/AutoGPTQ/AutoGPTQ/blob/main/auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py, and
        https://github.com/ModelCloud/GPTQModel (checkpoint_format: in `gptq` zero points are stored less one, in
        `gptq_v2` as they are; dynamic: rules of modules)
    """
    fields = {"bits": (4, 8), "checkpoint_format": ("gptq", "gptq_v2", None), "lm_head": (False, None)}
    check_fields(uri, KEY, config, {**fields, "is_marlin_format": (None, {}, False)})
    storage = LayerStorage(
        Encoding.GPTQ,
        config["bits"],
        (1, read_group_size(uri, f"{KEY}.group_size", config.get("group_size"))),
        has_zeros=True,
        is_zero_less_one=config.get("checkpoint_format") != "gptq_v2",
        has_order=read_flag(uri, config, "desc_act"),
    )
    return replace(storage, rules=(*_HEAD, *_dynamic_rules(uri, config, storage), *_outside_blocks(uri, config)))


def _dynamic_rules(uri: str, config: Mapping[str, Any], storage: LayerStorage) -> list[tuple[str, LayerStorage | None]]:
    """Return GPTQModel's rules: `-:` and a pattern of modules that are not quantized, or `+:` and of others' fields.

    Source: GPTQModel `quantization/config.py` (dynamic_get): the first pattern with which a name begins
    """
    dynamic, path = config.get("dynamic"), f"{KEY}.dynamic"
    if not dynamic:
        return []
    if not isinstance(dynamic, Mapping):
        raise refusal(uri, f"{path} = {dynamic!r} should be an object")
    rules: list[tuple[str, LayerStorage | None]] = []
    for name, fields in dynamic.items():
        pattern = rf"(?:{name.removeprefix('-:').removeprefix('+:')}).*"
        if not is_pattern(pattern):
            raise refusal(uri, f"{path} has {name!r}, which is no regular expression")
        if name.startswith("-:"):
            rules.append((pattern, None))
            continue
        given = {"bits": storage.bits, "group_size": storage.block[1] or -1, "desc_act": storage.has_order}
        given |= fields if isinstance(fields, Mapping) else {}
        check_fields(uri, f"{path}.{name}", given, {"bits": (4, 8)})
        group_size = read_group_size(uri, f"{path}.{name}.group_size", given["group_size"])
        has_order = read_flag(uri, given, "desc_act")
        rules.append((pattern, replace(storage, bits=given["bits"], block=(1, group_size), has_order=has_order)))
    return rules


def _outside_blocks(uri: str, config: Mapping[str, Any]) -> list[tuple[str, None]]:
    """Return the rule of modules that are not quantized since others are listed.

    Source: transformers `utils/quantization_config.py` (GPTQConfig.modules_in_block_to_quantize)
    """
    blocks = config.get("modules_in_block_to_quantize")
    if blocks is None:
        return []
    groups = [names if isinstance(names, list) else [names] for names in blocks] if isinstance(blocks, list) else []
    names = [name for group in groups for name in group]
    if not names or not all(isinstance(name, str) for name in names):
        raise refusal(uri, f"{KEY}.modules_in_block_to_quantize = {blocks!r} should be lists of modules' names")
    listed = "|".join(rf"\.{inside(name)}$" for name in names)
    return [(rf"(?!.*(?:{listed})).*", None)]


def read_mxfp4(uri: str, config: Mapping[str, Any]) -> LayerStorage:
    """Read MXFP4 of experts: `{name}_blocks` [expert, out, in / 32, 16], `{name}_scales` [expert, out, in / 32].

    Raises:
        UnsupportedModel: a field asks for something that is not served.
    Source: Open Compute Project 2023, "OCP Microscaling Formats (MX) Specification", sections 5.3.3 and 5.4.1;
        transformers `integrations/mxfp4.py` (the lower 4 bits of a byte are the earlier number)
    """
    key = "modules_to_not_convert"
    read_wide(uri, f"{KEY}.{key}", config.get(key), at_either_end)
    if named := [name for name in config.get(key) or [] if "experts" in name]:
        raise refusal(uri, f"{KEY}.{key} = {named!r} is not served: MXFP4 holds the experts")
    return LayerStorage(Encoding.MXFP4, bits=4, block=(1, MXFP4_BLOCK))
