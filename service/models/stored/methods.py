"""The quantization methods other than compressed-tensors: FP8 in blocks, AWQ, GPTQ and MXFP4."""

from collections.abc import Mapping
from typing import Any

from service.models.stored.fields import KEY, check_fields, read_flag, read_group_size, read_modules, refusal
from service.models.stored.layers import MXFP4_BLOCK, Encoding, LayerStorage


def read_block_fp8(uri: str, config: Mapping[str, Any]) -> LayerStorage:
    """Read FP8 in blocks, as DeepSeek and Qwen publish it: `weight_scale_inv` multiplies each block of `weight`.

    Raises:
        UnsupportedModel: a field asks for something that is not served.
    Source: https://huggingface.co/deepseek-ai/DeepSeek-V3/blob/main/README_WEIGHTS.md (FP8 weight documentation)
    """
    check_fields(uri, KEY, config, {"fmt": ("e4m3", None), "activation_scheme": ("dynamic",)})
    block = config.get("weight_block_size")
    if not isinstance(block, list) or len(block) != 2 or not all(type(n) is int and n > 0 for n in block):
        raise refusal(uri, f"{KEY}.weight_block_size = {block!r} should be two positive integers")
    wide = read_modules(uri, f"{KEY}.modules_to_not_convert", config.get("modules_to_not_convert"))
    return LayerStorage(
        Encoding.FP8, block=(block[0], block[1]), scale_suffix="_scale_inv", wide_modules=("lm_head", *wide)
    )


def read_awq(uri: str, config: Mapping[str, Any]) -> LayerStorage:
    """Read AWQ: `qweight` [in, out / 8], `qzeros` [groups, out / 8], `scales` [groups, out].

    Raises:
        UnsupportedModel: a field asks for something that is not served.
    Source: https://github.com/casper-hansen/AutoAWQ/blob/main/awq/modules/linear/gemm.py (WQLinear_GEMM)
    """
    version = config.get("version")
    if not isinstance(version, str) or version.lower() != "gemm":
        raise refusal(uri, f"{KEY}.version = {version!r} is not served; only 'gemm'")
    check_fields(uri, KEY, config, {"bits": (4,), "zero_point": (True,)})
    wide = read_modules(uri, f"{KEY}.modules_to_not_convert", config.get("modules_to_not_convert"))
    group_size = read_group_size(uri, f"{KEY}.group_size", config.get("group_size"))
    return LayerStorage(Encoding.AWQ, 4, (1, group_size), has_zeros=True, wide_modules=("lm_head", *wide))


def read_gptq(uri: str, config: Mapping[str, Any]) -> LayerStorage:
    """Read GPTQ: `qweight` [in / n, out], `qzeros` [groups, out / n], `scales` [groups, out], `g_idx` [in].

    Raises:
        UnsupportedModel: a field asks for something that is not served.
    Source: https://github.com/AutoGPTQ/AutoGPTQ/blob/main/auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py, and
        https://github.com/ModelCloud/GPTQModel (checkpoint_format: in `gptq` zero points are stored less one, in
        `gptq_v2` as they are)
    """
    absent = (None, {}, False)
    fields = {"bits": (4, 8), "checkpoint_format": ("gptq", "gptq_v2", None), "lm_head": (False, None)}
    check_fields(uri, KEY, config, {**fields, "dynamic": absent, "is_marlin_format": absent})
    return LayerStorage(
        Encoding.GPTQ,
        config["bits"],
        (1, read_group_size(uri, f"{KEY}.group_size", config.get("group_size"))),
        has_zeros=True,
        is_zero_less_one=config.get("checkpoint_format") != "gptq_v2",
        has_order=read_flag(uri, config, "desc_act"),
        wide_modules=("lm_head",),
    )


def read_mxfp4(uri: str, config: Mapping[str, Any]) -> LayerStorage:
    """Read MXFP4 of experts: `{name}_blocks` [expert, out, in / 32, 16], `{name}_scales` [expert, out, in / 32].

    Raises:
        UnsupportedModel: a field asks for something that is not served.
    Source: Open Compute Project 2023, "OCP Microscaling Formats (MX) Specification", sections 5.3.3 and 5.4.1;
        transformers `integrations/mxfp4.py` (the lower 4 bits of a byte are the earlier number)
    """
    wide = read_modules(uri, f"{KEY}.modules_to_not_convert", config.get("modules_to_not_convert"))
    if named := [name for name in wide if "experts" in name]:
        raise refusal(uri, f"{KEY}.modules_to_not_convert = {named!r} is not served: MXFP4 holds the experts")
    return LayerStorage(Encoding.MXFP4, bits=4, block=(1, MXFP4_BLOCK))
