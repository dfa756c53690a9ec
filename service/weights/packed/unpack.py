"""Unpacking of packed weights to rows of float32, or of integers in 4 bits with scales and zero points of groups.

An integer becomes (value - zero point) * scale, by row and group; an FP8 value is multiplied by the scale of its block,
a number of MXFP4 by two to the power of its block's exponent, one of NVFP4 by the scales of its block and its tensor.
Source: the modules of service/models/stored name the source of each format.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache

import ml_dtypes
import numpy as np
from jaxtyping import Bool, Float32, Num, UInt8

from service.models.stored.layers import WORD_BITS, Encoding, LayerStorage
from service.models.weight_spec import FP4, INT4
from service.weights.packed.words import unpack, unpack_awq

BLOCK_ELEMENTS = 1024 * 1024  # float32 elements unpacked at a time
EXPONENT_BIAS, NAN_EXPONENT = 127, 255  # of MXFP4's exponents
MAGNITUDES = 0x77  # the bits of a pair of numbers without their signs; all are set if both are the largest

type Tensors = Mapping[str, np.ndarray]
"""Tensors in their shapes, by role as in `LayerStorage.tensors`."""


class UnreadableWeight(Exception):
    """A packed tensor, named by its role, is invalid."""

    def __init__(self, role: str, reason: str) -> None:
        super().__init__(reason)
        self.role = role


def unpacked_rows(
    storage: LayerStorage, shape: tuple[int, ...], tensors: Tensors
) -> Iterator[tuple[Float32[np.ndarray, "row in"]]]:
    """Yield a weight's dequantized rows in order, a block at a time.

    Raises:
        UnreadableWeight: a scale is not positive and finite, or a tensor contradicts the configuration or the shape.
    """
    if storage.is_fp4:
        for values, factors in _fp4_blocks(storage, shape[-1], tensors):
            wide = _fp4_table()[values].reshape(*factors.shape, -1)
            wide *= factors[:, :, None]
            yield (wide.reshape(len(values), -1),)
        return
    num_out, num_in = shape
    scales, columns = _checked(storage, num_out, num_in, tensors)
    for rows in _blocks(num_out, num_in):
        if storage.encoding is Encoding.FP8:
            yield (_fp8_rows(storage, tensors["values"], scales, rows),)
        else:
            integers, zeros = _integers(storage, tensors, rows, num_in), _zeros(storage, tensors, rows)
            yield (_scaled(integers, zeros, scales[rows], columns),)


def grouped_rows(
    storage: LayerStorage, shape: tuple[int, ...], tensors: Tensors
) -> Iterator[tuple[Num[np.ndarray, "row _"], ...]]:
    """Yield the numbers of a weight's rows in 4 bits, the scales of their groups, and zero points if there are some.

    Integers and zero points are those of the checkpoint less 8, so that 4 bits with a sign hold them.

    Raises:
        UnreadableWeight: as `unpacked_rows`.
    """
    if storage.is_fp4:
        for values, factors in _fp4_blocks(storage, shape[-1], tensors):
            pairs = np.stack([values & 0x0F, values >> 4], axis=-1)
            yield pairs.reshape(len(values), -1).view(FP4), factors
        return
    num_out, num_in = shape
    scales, columns = _checked(storage, num_out, num_in, tensors)
    assert columns is None, "columns of a group that lie apart are not kept in 4 bits"
    middle = np.uint8(2 ** (storage.bits - 1))
    for rows in _blocks(num_out, num_in):
        integers = np.ascontiguousarray(_integers(storage, tensors, rows, num_in))
        # Of the sum's two's complement the lowest 4 bits are what counts.
        values, zeros = (integers ^ middle).view(INT4), _zeros(storage, tensors, rows)
        if isinstance(zeros, np.ndarray):
            yield values, scales[rows], zeros.astype(np.float32) - np.float32(middle)
        else:
            yield values, scales[rows]


def _blocks(num_out: int, num_in: int) -> Iterator[slice]:
    """Yield ranges of rows; zero points of several rows share a word, so each is a multiple of WORD_BITS rows."""
    step = max(WORD_BITS, BLOCK_ELEMENTS // num_in // WORD_BITS * WORD_BITS)
    for start in range(0, num_out, step):
        yield slice(start, min(start + step, num_out))


def _checked(
    storage: LayerStorage, num_out: int, num_in: int, tensors: Tensors
) -> tuple[Float32[np.ndarray, "row group"], np.ndarray | None]:
    """Return the scales, and the group of each column or None."""
    scales = _checked_scales(storage, tensors["scales"])
    columns = _checked_groups(storage, num_in, scales.shape[1], tensors)
    if "shape" in tensors and tensors["shape"].tolist() != [num_out, num_in]:
        raise UnreadableWeight("shape", f"is {tensors['shape'].tolist()}; config.json makes it {[num_out, num_in]}")
    return scales, columns


def _checked_scales(storage: LayerStorage, stored: np.ndarray) -> Float32[np.ndarray, "row group"]:
    """Return the scales by row and group, by block, or of the whole tensor."""
    scales = np.atleast_2d(stored.astype(np.float32))
    is_good = np.isfinite(scales) & (scales > 0)
    if not is_good.all():
        index = np.unravel_index(int(is_good.argmin()), scales.shape)
        raise UnreadableWeight(
            "scales", f"{[int(i) for i in index]} has the scale {scales[index]}, which should be positive and finite"
        )
    return scales.T if storage.encoding in (Encoding.AWQ, Encoding.GPTQ) else scales


def _checked_groups(storage: LayerStorage, num_in: int, num_groups: int, tensors: Tensors) -> np.ndarray | None:
    """Return the group of each column, or None if groups are equal runs of consecutive columns."""
    if (groups := tensors.get("group_of_column")) is None:
        return None
    if groups.min() < 0 or groups.max() >= num_groups:
        raise UnreadableWeight("group_of_column", f"refers to a group outside of the {num_groups} existing ones")
    in_order = np.array_equal(groups, np.arange(num_in) // storage.group_size(num_in))
    if not in_order and not storage.has_order:
        raise UnreadableWeight("group_of_column", "reorders the columns, which desc_act = false in config.json denies")
    return None if in_order else groups


def _integers(storage: LayerStorage, tensors: Tensors, rows: slice, num_in: int) -> np.ndarray:
    words, per_word = tensors["values"], WORD_BITS // storage.bits
    match storage.encoding:
        case Encoding.AWQ:
            return unpack_awq(words[:, rows.start // per_word : -(-rows.stop // per_word)]).T
        case Encoding.GPTQ:
            return unpack(words[:, rows].T, storage.bits)
        case _:
            return unpack(words[rows], storage.bits)[:, :num_in]


def _zeros(storage: LayerStorage, tensors: Tensors, rows: slice) -> np.ndarray | np.float32:
    if not storage.has_zeros:
        return np.float32(2 ** (storage.bits - 1))
    words, per_word = tensors["zeros"], WORD_BITS // storage.bits
    word_range = slice(rows.start // per_word, -(-rows.stop // per_word))
    if storage.encoding is Encoding.PACKED:
        return unpack(words[word_range].T, storage.bits).T[: rows.stop - rows.start]
    if storage.encoding is Encoding.AWQ:
        return unpack_awq(words[:, word_range]).T
    zeros = unpack(words[:, word_range], storage.bits).T
    return (zeros + np.uint8(1)) & np.uint8(2**storage.bits - 1) if storage.is_zero_less_one else zeros


def _scaled(
    integers: np.ndarray, zeros: np.ndarray | np.float32, scales: np.ndarray, columns: np.ndarray | None
) -> Float32[np.ndarray, "row in"]:
    wide = integers.astype(np.float32, order="C")
    if columns is not None:
        wide -= zeros[:, columns] if isinstance(zeros, np.ndarray) else zeros
        wide *= scales[:, columns]
        return wide
    in_groups = wide.reshape(len(wide), scales.shape[1], -1)
    in_groups -= zeros[:, :, None] if isinstance(zeros, np.ndarray) else zeros
    in_groups *= scales[:, :, None]
    return in_groups.reshape(wide.shape)


def _fp8_rows(
    storage: LayerStorage, values: np.ndarray, scales: np.ndarray, rows: slice
) -> Float32[np.ndarray, "row in"]:
    wide = _fp8_table()[values[rows].view(np.uint8)]
    block_rows = storage.block[0] or len(values)
    row_scales = scales[np.arange(rows.start, rows.stop) // block_rows]
    wide *= np.repeat(row_scales, storage.group_size(values.shape[1]), axis=1)[:, : values.shape[1]]
    return wide


def _fp4_blocks(
    storage: LayerStorage, num_in: int, tensors: Tensors
) -> Iterator[tuple[UInt8[np.ndarray, "row block byte"], Float32[np.ndarray, "row block"]]]:
    """Yield the bytes of rows, which are those of all experts, and what their blocks are multiplied by."""
    block = storage.group_size(num_in)
    values, scales = tensors["values"], tensors["scales"]
    if storage.is_transposed:
        values, scales = np.swapaxes(values, -1, -2), np.swapaxes(scales, -1, -2)
    values, outer = values.reshape(-1, num_in // block, block // 2), scales.shape
    scales = scales.reshape(-1, num_in // block)
    step = max(1, BLOCK_ELEMENTS // num_in)
    for start in range(0, len(values), step):
        rows = slice(start, start + step)
        yield _scaled_blocks(storage, values[rows], scales[rows], tensors, (start, outer))


def _scaled_blocks(
    storage: LayerStorage,
    values: UInt8[np.ndarray, "row block byte"],
    scales: np.ndarray,
    tensors: Tensors,
    place: tuple[int, tuple[int, ...]],
) -> tuple[UInt8[np.ndarray, "row block byte"], Float32[np.ndarray, "row block"]]:
    """Return the numbers of blocks, and what they are multiplied by.

    Args:
        storage: how they are stored.
        values: their numbers.
        scales: their exponents or scales, shape [row, block].
        tensors: the weight's, among them the scale of all.
        place: the first row, and the shape of the scales of all rows, for messages.

    Raises:
        UnreadableWeight: a scale stands for no number, or contradicts its block.
    """
    if storage.encoding is not Encoding.NVFP4:
        _refuse_scales(scales == NAN_EXPONENT, place, lambda _: "the exponent 255, which stands for no number")
        return values, np.ldexp(np.float32(1), scales.astype(np.int32) - EXPONENT_BIAS)
    own, of_tensor = scales.astype(np.float32), _tensor_scale(tensors["tensor_scale"])
    with np.errstate(over="ignore"):
        factors = own / of_tensor if storage.is_divided else own * of_tensor
    is_zero = own == 0
    # Numbers of a block that is too small for a scale were divided by zero, which made each the largest there is.
    sizes = values & MAGNITUDES
    is_lost = is_zero & (sizes != MAGNITUDES).any(axis=-1) & (sizes != 0).any(axis=-1)
    is_bad = ~np.isfinite(factors) | (own < 0) | is_lost | ((factors == 0) & ~is_zero)
    _refuse_scales(is_bad, place, lambda at: f"the scale {own[at]} in a tensor with the scale {of_tensor:.3g}")
    if not is_zero.any():
        return values, factors
    return np.where(is_zero[:, :, None], np.uint8(0), values), np.where(is_zero, np.float32(1), factors)


def _refuse_scales(
    is_bad: Bool[np.ndarray, "row block"],
    place: tuple[int, tuple[int, ...]],
    reason: Callable[[tuple[int, int]], str],
) -> None:
    """Refuse a scale by its place in the whole tensor and a reason, if one is bad."""
    if is_bad.any():
        first, shape = place
        row, block = (int(i) for i in np.unravel_index(int(is_bad.argmax()), is_bad.shape))
        index = np.unravel_index((first + row) * shape[-1] + block, shape)
        raise UnreadableWeight("scales", f"{[int(i) for i in index]} has {reason((row, block))}")


def _tensor_scale(stored: np.ndarray) -> np.float32:
    scale = np.float32(stored.reshape(()))
    if not (np.isfinite(scale) and scale > 0):
        raise UnreadableWeight("tensor_scale", f"is {scale}, which should be positive and finite")
    return scale


@cache
def _fp4_table() -> Float32[np.ndarray, "256 2"]:
    """Return the two numbers of each byte, that of the lower bits first."""
    magnitudes = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    numbers = np.concatenate([magnitudes, -magnitudes])
    byte = np.arange(256)
    return np.stack([numbers[byte % 16], numbers[byte // 16]], axis=-1)


@cache
def _fp8_table() -> Float32[np.ndarray, "256"]:
    return np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
