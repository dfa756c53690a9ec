"""Weights as other programs quantize and store them, and what they stand for: written from the formats' definitions.

Nothing here is shared with what reads them: values are packed one word at a time, and dequantized before packing.
"""

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

type Written = tuple[dict[str, np.ndarray], np.ndarray]
"""Tensors by their name after the module's, and the weight in float32."""

F8 = ml_dtypes.float8_e4m3fn
LARGEST_F8 = 448
# Of float4_e2m1fn, by its bits. Source: Open Compute Project 2023, "OCP Microscaling Formats (MX) Specification", 5.3.3
FP4_NUMBERS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
# Source: https://github.com/casper-hansen/AutoAWQ/blob/main/awq/modules/linear/gemm.py (order_map)
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def packed(values: np.ndarray, bits: int, order: list[int] | None = None) -> np.ndarray:
    """Pack each row of unsigned integers in int32 words, from the lowest bits on; missing ones are 0."""
    per_word = 32 // bits
    words = np.zeros((len(values), -(-values.shape[1] // per_word)), np.uint64)
    for word in range(words.shape[1]):
        for place in range(per_word):
            column = word * per_word + (order[place] if order else place)
            if column < values.shape[1]:
                words[:, word] |= values[:, column].astype(np.uint64) << np.uint64(place * bits)
    return words.astype(np.uint32).view(np.int32)


def integers(weight: np.ndarray, group_of: np.ndarray, bits: int, *, has_zeros: bool) -> tuple[np.ndarray, ...]:
    """Return unsigned values [out, in], and float16 scales and zero points [out, groups]."""
    num_groups, most = int(group_of.max()) + 1, 2**bits - 1
    scales = np.zeros((len(weight), num_groups), np.float16)
    zeros = np.full((len(weight), num_groups), 2 ** (bits - 1), np.int64)
    for group in range(num_groups):
        part = weight[:, group_of == group]
        low, high = part.min(1), part.max(1)
        if has_zeros:
            scales[:, group] = np.maximum((high - low) / most, 1e-4)
            zeros[:, group] = np.clip(np.rint(-low / scales[:, group].astype(np.float32)), 1, most)
        else:
            scales[:, group] = np.maximum(np.maximum(high, -low) / (most // 2), 1e-4)
    values = np.rint(weight / scales.astype(np.float32)[:, group_of]) + zeros[:, group_of]
    return np.clip(values, 0, most).astype(np.int64), scales, zeros


def dequantized(values: np.ndarray, scales: np.ndarray, zeros: np.ndarray, group_of: np.ndarray) -> np.ndarray:
    return (values - zeros[:, group_of]).astype(np.float32) * scales.astype(np.float32)[:, group_of]


def fp8(block: tuple[int, int], suffix: str) -> Callable[[np.ndarray], Written]:
    """Quantize blocks of rows and columns; 0 for all."""

    def write(weight: np.ndarray) -> Written:
        rows, columns = block[0] or weight.shape[0], block[1] or weight.shape[1]
        scales = np.zeros((-(-weight.shape[0] // rows), -(-weight.shape[1] // columns)), np.float32)
        values, wide = np.zeros(weight.shape, F8), np.zeros(weight.shape, np.float32)
        for row, column in np.ndindex(scales.shape):
            part = np.s_[row * rows : (row + 1) * rows, column * columns : (column + 1) * columns]
            scales[row, column] = np.abs(weight[part]).max() / LARGEST_F8
            values[part] = (weight[part] / scales[row, column]).astype(F8)
            wide[part] = values[part].astype(np.float32) * scales[row, column]
        return {"weight": values, f"weight{suffix}": scales[0] if block == (0, 0) else scales}, wide

    return write


def compressed(group_size: int, bits: int = 4, *, has_zeros: bool = False, seed: int | None = None):
    """Quantize as `pack-quantized`; with a seed the columns of each group lie apart."""

    def write(weight: np.ndarray) -> Written:
        group_of = np.arange(weight.shape[1]) // (group_size or weight.shape[1])
        if seed is not None:
            group_of = np.random.default_rng(seed).permutation(group_of)
        values, scales, zeros = integers(weight, group_of, bits, has_zeros=has_zeros)
        made = {
            "weight_packed": packed(values, bits),
            "weight_scale": scales,
            "weight_shape": np.array(weight.shape, np.int64),
        }
        if has_zeros:
            made["weight_zero_point"] = packed(zeros.T, bits).T.copy()
        if seed is not None:
            made["weight_g_idx"] = group_of.astype(np.int32)
        return made, dequantized(values, scales, zeros, group_of)

    return write


def awq(weight: np.ndarray) -> Written:
    group_of = np.arange(weight.shape[1]) // 64
    values, scales, zeros = integers(weight, group_of, 4, has_zeros=True)
    made = {"qweight": packed(values.T, 4, AWQ_ORDER), "qzeros": packed(zeros.T, 4, AWQ_ORDER), "scales": scales.T}
    return made, dequantized(values, scales, zeros, group_of)


def gptq(bits: int = 4, *, is_v2: bool = False, seed: int | None = None, has_zeros: bool = True):
    """Quantize in groups of 64 columns; with a seed those of each group lie apart."""

    def write(weight: np.ndarray) -> Written:
        group_of = np.arange(weight.shape[1]) // 64
        if seed is not None:
            group_of = np.random.default_rng(seed).permutation(group_of)
        values, scales, zeros = integers(weight, group_of, bits, has_zeros=has_zeros)
        made = {
            "qweight": packed(values, bits).T.copy(),
            "qzeros": packed(zeros.T - (0 if is_v2 else 1), bits),
            "scales": scales.T,
            "g_idx": group_of.astype(np.int32),
        }
        return made, dequantized(values, scales, zeros, group_of)

    return write


def fp4(weight: np.ndarray, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearest numbers of 4 bits in pairs of rows [..., out, in / 2], and what they stand for."""
    groups = weight.reshape(*scales.shape, -1)
    codes = np.abs(groups[..., None] / scales[..., None, None] - FP4_NUMBERS).argmin(-1)
    wide = FP4_NUMBERS[codes] * scales[..., None]
    flat = codes.reshape(weight.shape)
    return (flat[..., 0::2] + 16 * flat[..., 1::2]).astype(np.uint8), wide.reshape(weight.shape).astype(np.float32)


def nvfp4(*, is_divided: bool) -> Callable[[np.ndarray], Written]:
    """Quantize as compressed-tensors does, whose scale of a tensor divides, or as ModelOpt, whose scale multiplies."""

    def write(weight: np.ndarray) -> Written:
        largest = np.abs(weight.reshape(*weight.shape[:-1], -1, 16)).max(-1)
        of_tensor = np.float32(largest.max() / (6 * LARGEST_F8))
        of_tensor = np.float32(1) / of_tensor if is_divided else of_tensor
        scales = np.clip(largest / 6 * of_tensor if is_divided else largest / 6 / of_tensor, 2**-9, LARGEST_F8).astype(
            F8
        )
        own = scales.astype(np.float32)
        packed_pairs, wide = fp4(weight, own / of_tensor if is_divided else own * of_tensor)
        if is_divided:
            made = {"weight_packed": packed_pairs, "weight_global_scale": np.full(1, of_tensor)}
            return made | {"weight_scale": scales, "input_global_scale": np.full(1, 300, np.float32)}, wide
        made = {"weight": packed_pairs, "weight_scale_2": np.array(of_tensor)}
        return made | {"weight_scale": scales, "input_scale": np.array(0.02, np.float32)}, wide

    return write


def mxfp4(weight: np.ndarray) -> Written:
    """Quantize as compressed-tensors does, with the exponent of each 32 columns."""
    largest = np.abs(weight.reshape(len(weight), -1, 32)).max(-1)
    exponents = np.floor(np.log2(largest)) - 2
    packed_pairs, wide = fp4(weight, (2.0**exponents).astype(np.float32))
    return {"weight_packed": packed_pairs, "weight_scale": (exponents + 127).astype(np.uint8)}, wide


def compressed_config(form: str, weights: dict[str, Any], activations: dict[str, Any] | None) -> dict[str, Any]:
    args = {"num_bits": 8, "type": "float", "symmetric": True, "dynamic": False, "group_size": None}
    group = {
        "targets": ["Linear"],
        "weights": args | {"strategy": "channel", "block_structure": None} | weights,
        "input_activations": None
        if activations is None
        else args | {"strategy": "token", "dynamic": True} | activations,
        "output_activations": None,
    }
    return {
        **{"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed"},
        **{"ignore": ["lm_head"], "kv_cache_scheme": None, "config_groups": {"group_0": group}},
    }


def integer_config(group_size: int | None, bits: int = 4, *, symmetric: bool = True, actorder: str | None = None):
    weights = {"num_bits": bits, "type": "int", "symmetric": symmetric, "actorder": actorder, "group_size": group_size}
    return compressed_config("pack-quantized", weights | {"strategy": "group" if group_size else "channel"}, None)


def fp4_config(form: str, *, activations: bool) -> dict[str, Any]:
    """As compressed-tensors 0.20 writes it."""
    is_nv = form.startswith("nv")
    args = {
        **{"num_bits": 4, "group_size": 16 if is_nv else 32, "strategy": "tensor_group" if is_nv else "group"},
        "scale_dtype": "torch.float8_e4m3fn" if is_nv else "torch.uint8",
    }
    return compressed_config(form, args, args | {"dynamic": "local" if is_nv else True} if activations else None)


def modelopt_config(algorithm: str | None, **fields: Any) -> dict[str, Any]:
    """As ModelOpt writes it into `config.json`."""
    args = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
    group = {"input_activations": args, "weights": args, "targets": ["Linear"]}
    return {
        **{"quant_method": "modelopt", "quant_algo": algorithm, "config_groups": {"group_0": group}},
        **{"ignore": ["lm_head"], "kv_cache_scheme": {"dynamic": False, "num_bits": 8, "type": "float"}},
        "producer": {"name": "modelopt", "version": "0.39.0"},
    } | fields


def gptq_config(bits: int = 4, **fields: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": 64, "desc_act": False, "sym": False} | fields


# By name: `quantization_config`, and how a weight is written.
FORMATS: dict[str, tuple[dict[str, Any], Callable[[np.ndarray], Written]]] = {
    "fp8 by row": (compressed_config("float-quantized", {}, {}), fp8((1, 0), "_scale")),
    "fp8 by tensor": (compressed_config("float-quantized", {"strategy": "tensor"}, {}), fp8((0, 0), "_scale")),
    "fp8 in blocks": (
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [96, 128]},
        fp8((96, 128), "_scale_inv"),  # the last of 96 rows is cut
    ),
    "w4a16": (integer_config(64), compressed(64)),
    "w4a16 by row": (integer_config(None), compressed(0)),
    "w4a16 asymmetric": (integer_config(64, symmetric=False), compressed(64, has_zeros=True)),
    "w4a16 in order of activations": (integer_config(64, actorder="group"), compressed(64, seed=1)),
    "w8a16": (integer_config(128, 8), compressed(128, 8)),
    "nvfp4": (fp4_config("nvfp4-pack-quantized", activations=True), nvfp4(is_divided=True)),
    "nvfp4 of weights": (fp4_config("nvfp4-pack-quantized", activations=False), nvfp4(is_divided=True)),
    "nvfp4 of modelopt": (modelopt_config("NVFP4"), nvfp4(is_divided=False)),
    "fp8 by row of modelopt": (modelopt_config("FP8_PER_CHANNEL_PER_TOKEN"), fp8((1, 0), "_scale")),
    "fp8 in blocks of modelopt": (modelopt_config("FP8_PB_WO"), fp8((128, 128), "_scale")),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}, awq),
    "gptq": (gptq_config(), gptq()),
    "gptq with desc_act": (gptq_config(desc_act=True), gptq(seed=2)),
    "gptq v2 of 8 bits, symmetric": (
        gptq_config(8, checkpoint_format="gptq_v2", sym=True),
        gptq(8, is_v2=True, has_zeros=False),
    ),
}
# Exact in every type, so that weights are not quantized anew.
EXACT: dict[str, tuple[dict[str, Any], Callable[[np.ndarray], Written]]] = {
    "mxfp4": (fp4_config("mxfp4-pack-quantized", activations=True), mxfp4),
    "mxfp4 of weights": (fp4_config("mxfp4-pack-quantized", activations=False), mxfp4),
}
