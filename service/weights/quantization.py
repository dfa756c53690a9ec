"""Quantization of weights to 8 bits by row, or to 4 bits by groups of columns, while their elements arrive.

A row is the set of weights that one output of a product sums over. Its scale depends on all of its elements, so a row
that is split between chunks is buffered until it is complete; no other unquantized weights are.
Source: Dettmers et al. 2022, arXiv:2208.07339, section 2.1 (absmax quantization, by row).
"""

import threading
from collections.abc import Callable

import ml_dtypes
import numpy as np
from jaxtyping import BFloat16, Float, Float32, Int4, Num, UInt8

from service.kernels.limits import FP8_MAX, INT8_MAX
from service.models.quantization import GROUP_COLUMNS
from service.models.weight_spec import INT4
from service.weights.cast import cast_into

BLOCK_ELEMENTS = 256 * 1024  # small enough to stay in the CPU's cache between passes
GROUPED_BLOCK_ELEMENTS = 64 * 1024  # the same with several arrays in float32
INT8 = np.dtype(np.int8)
# FP8_MAX divided by anything smaller is infinite. Such rows are zero in float32 arithmetic.
SMALLEST = 2.0**-118
# Multiplied by this, a float32 has the exponent field of the FP8 number, subnormal ones included.
FP8_EXPONENT = np.float32(2.0**-120)
DROPPED_BITS = 20  # of a float32's fraction
FP8_SIGN = np.uint8(0x80)
LARGEST_INT4 = 15  # the integers of 4 bits, which begin at 0 before the middle is subtracted
# Of the range of a group: with the whole range as the first guess, large values decide too much.
FIRST_RANGES, NUM_FITS = (1.0, 0.85), 3
LARGEST_FITTED = 2.0**60  # squares of sums of a group of these, and of what one is divided by, are float32s
FARTHEST_MEAN = 4  # from zero, as a multiple of a group's range


class UnquantizableRow(Exception):
    """A row that 8 bits cannot represent."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(f"row {row} {reason}")
        self.row = row


def quantize_rows(
    rows: Float[np.ndarray, "row in"], first_row: int = 0, dtype: np.dtype = INT8
) -> tuple[Num[np.ndarray, "row in"], Float[np.ndarray, "row"]]:
    """Return 8-bit values and the float32 scales to multiply them by.

    Args:
        rows: finite values of any floating dtype.
        first_row: the index of the first row, for error messages.
        dtype: int8, for values in [-127, 127], or float8_e4m3fn, for [-448, 448].

    Raises:
        UnquantizableRow: a row has values that are not finite, or an outlier so large that most others round to zero.
    """
    is_int8 = dtype == INT8
    most = INT8_MAX if is_int8 else FP8_MAX
    wide = np.empty(rows.shape, np.float32)
    cast_into(wide, rows)
    largest = np.maximum(wide.max(axis=1), -wide.min(axis=1))
    if not np.isfinite(largest).all():
        raise UnquantizableRow(first_row + int(np.isfinite(largest).argmin()), "has a value that is NaN or infinite")
    is_zero = largest < SMALLEST
    largest[is_zero] = most
    values = np.empty(rows.shape, np.int8)
    np.multiply(wide, (most / largest)[:, None], out=wide)
    if is_int8:
        np.rint(wide, out=values, casting="unsafe")
    else:
        _write_fp8(wide, values.view(np.uint8))
    _check_zeros(rows, values, first_row, is_zero)
    return values.view(dtype), largest / most


def _write_fp8(scaled: Float[np.ndarray, "row in"], out: UInt8[np.ndarray, "row in"]) -> None:
    """Round numbers of at most FP8_MAX to float8_e4m3fn, ties to even and without -0; overwrites `scaled`.

    Subnormals first lose the bits below float32's own subnormals, which only affects near-ties. Adding the rounding
    carries from the fraction into the exponent, as it should. A cast by ml_dtypes is slower and holds the GIL.
    Source: Micikevicius et al. 2022, arXiv:2209.05433, section 3 (E4M3)
    """
    scaled *= FP8_EXPONENT
    bits = scaled.view(np.uint32)
    np.right_shift(bits, 24, out=out, casting="unsafe")
    out &= FP8_SIGN
    bits &= 0x7FFF_FFFF
    rounding = bits >> DROPPED_BITS
    rounding &= 1
    rounding += 2 ** (DROPPED_BITS - 1) - 1
    bits += rounding
    bits >>= DROPPED_BITS
    np.bitwise_or(out, bits, out=out, casting="unsafe")
    out[out == FP8_SIGN] = 0


def _check_zeros(
    rows: Float[np.ndarray, "row in"], values: Num[np.ndarray, "row in"], first_row: int, is_zero: np.ndarray
) -> None:
    """Check that at most half of a row rounds to zero; for a normal distribution, one or two percent do."""
    num_zeros = (values == 0).view(np.uint8).sum(axis=1, dtype=np.int64)
    for row in np.flatnonzero((2 * num_zeros > values.shape[1]) & ~is_zero):
        num_others = np.count_nonzero(rows[row])  # values that were 0 before do not count
        if 2 * np.count_nonzero(values[row]) < num_others:
            raise UnquantizableRow(
                first_row + int(row),
                f"has an outlier so large that more than half of its {num_others} nonzero values round to 0",
            )


def quantize_groups(
    rows: Float[np.ndarray, "row in"], first_row: int = 0
) -> tuple[Int4[np.ndarray, "row in"], BFloat16[np.ndarray, "row group"], BFloat16[np.ndarray, "row group"]]:
    """Return integers of 4 bits, and the scale and the zero point of each group of columns: (integer - zero) * scale.

    Of several first guesses the one whose squared error is least after fits counts. A fit rounds to integers, and then
    finds the scale and the zero point for which these have the least squared error. Integers are rounded once more with
    both in bfloat16.
    Source: Lloyd 1982, "Least squares quantization in PCM", doi:10.1109/TIT.1982.1056489, with 16 equidistant levels;
    first guesses as llama.cpp's `make_qkx2_quants` (ggml-quants.c).

    Args:
        rows: finite values of any floating dtype, in whole groups of GROUP_COLUMNS.
        first_row: the index of the first row, for error messages.

    Raises:
        UnquantizableRow: a row has values that are not finite.
    """
    wide = np.empty((rows.size // GROUP_COLUMNS, GROUP_COLUMNS), np.float32)
    cast_into(wide.reshape(rows.shape), rows)
    columns = np.ascontiguousarray(wide.T)  # so that sums over a group are those of long rows
    lowest, highest = columns.min(axis=0), columns.max(axis=0)
    is_good = (np.maximum(highest, -lowest) < LARGEST_FITTED).reshape(len(rows), -1).all(axis=1)
    if not is_good.all():
        raise UnquantizableRow(first_row + int(is_good.argmin()), "has a value that is NaN, infinite or above 2^60")
    scale, zero = (part.astype(ml_dtypes.bfloat16) for part in _fitted(columns, lowest, highest))
    integers = np.multiply(columns, 1 / scale.astype(np.float32), out=columns)
    integers += zero.astype(np.float32) + 8
    np.clip(np.rint(integers, out=integers), 0, LARGEST_INT4, out=integers)
    values = np.ascontiguousarray(integers.T.astype(np.uint8)) ^ np.uint8(8)  # less 8, of which 4 bits count
    return values.view(INT4).reshape(rows.shape), scale.reshape(len(rows), -1), zero.reshape(len(rows), -1)


def _fitted(
    columns: Float32[np.ndarray, "column group"],
    lowest: Float32[np.ndarray, " group"],
    highest: Float32[np.ndarray, " group"],
) -> tuple[Float32[np.ndarray, " group"], Float32[np.ndarray, " group"]]:
    """Return the scale and the zero point of each group; see `quantize_groups`."""
    mean = columns.mean(axis=0)
    # The zero point of a narrow range far from zero would need more bits than a bfloat16 has.
    is_far = np.abs(mean) > FARTHEST_MEAN * (highest - lowest)
    lowest, highest = np.where(is_far, np.minimum(lowest, 0), lowest), np.where(is_far, np.maximum(highest, 0), highest)
    may_fit = ~is_far & (highest - lowest > 1 / LARGEST_FITTED)
    step = np.maximum((highest - lowest) / LARGEST_INT4, SMALLEST)
    best, scale, zero = np.full(len(step), -1, np.float32), step, np.zeros_like(step)
    integers = np.empty_like(columns)
    for part in FIRST_RANGES:
        fitted = step * np.float32(part)
        offset = LARGEST_INT4 / 2 - (lowest + highest) / (2 * fitted)
        for _ in range(NUM_FITS):
            np.multiply(columns, 1 / fitted, out=integers)
            integers += offset
            np.clip(np.rint(integers, out=integers), 0, LARGEST_INT4, out=integers)
            mean_integer = integers.mean(axis=0)
            shared = np.einsum("cg,cg->g", integers, columns) / len(columns) - mean_integer * mean
            spread = np.einsum("cg,cg->g", integers, integers) / len(columns) - mean_integer**2
            is_line = (spread > 0) & (shared > 0) & may_fit
            slope = np.where(is_line, shared, step) / np.where(is_line, spread, 1)
            # Of the variance a line through the integers explains as much as the squared error becomes smaller by.
            explained = np.where(is_line, slope * shared, 0)
            fitted, offset = slope, mean_integer - mean / slope
            is_better = explained > best
            best, scale, zero = (
                np.where(is_better, new, old) for new, old in ((explained, best), (fitted, scale), (offset, zero))
            )
    return scale, zero - 8


def checked_scales(write: Callable[[int, np.ndarray], None]) -> Callable[[int, np.ndarray], None]:
    """Wrap a writer of a checkpoint's scales, by first row, to raise UnquantizableRow unless they are positive."""

    def check_and_write(first_row: int, scales: np.ndarray) -> None:
        wide = scales.astype(np.float32)
        is_good = np.isfinite(wide) & (wide > 0)
        if not is_good.all():
            row = int(is_good.argmin())
            raise UnquantizableRow(first_row + row, f"has the scale {wide[row]}, which should be positive and finite")
        write(first_row, scales)

    return check_and_write


class RowQuantizer:
    """Quantizes one tensor whose elements arrive in runs, in any order and from several threads.

    To int8 and float8_e4m3fn by row; to int4 by group of columns, with zero points.
    """

    def __init__(
        self,
        row_len: int,
        write_values: Callable[[int, np.ndarray], None],
        *write_scales: Callable[[int, np.ndarray], None],
        dtype: np.dtype = INT8,
    ) -> None:
        """Create a quantizer.

        Args:
            row_len: the number of elements in a row.
            write_values: receives the index of an element, and the values from there.
            write_scales: receives the index of a scale, and the scales from there; of int4 also one for zero points.
            dtype: int8, float8_e4m3fn or int4.
        """
        self._row_len, self._write_values, self._write_scales = row_len, write_values, write_scales
        self._dtype = dtype
        self._lock = threading.Lock()
        self._partial: dict[int, tuple[np.ndarray, int]] = {}  # by row: its elements, and how many are missing

    def write(self, first: int, values: np.ndarray) -> None:
        """Quantize elements, buffering partial rows.

        Args:
            first: the index of the first element in storage order.
            values: shape [n], of the stored type; copied.

        Raises:
            UnquantizableRow: see `quantize_rows`.
        """
        row, column = divmod(first, self._row_len)
        if column:
            taken = min(self._row_len - column, len(values))
            self._fill(row, column, values[:taken])
            row, values = row + 1, values[taken:]
        num_rows = len(values) // self._row_len
        self._write_rows(row, values[: num_rows * self._row_len].reshape(num_rows, self._row_len))
        if len(values) % self._row_len:
            self._fill(row + num_rows, 0, values[num_rows * self._row_len :])

    def _fill(self, row: int, column: int, values: np.ndarray) -> None:
        with self._lock:
            elements, num_missing = self._partial.pop(row, (None, self._row_len))
            if elements is None:
                elements = np.empty(self._row_len, values.dtype)
            cast_into(elements[column : column + len(values)], values)
            num_missing -= len(values)
            if num_missing:
                self._partial[row] = (elements, num_missing)
                return
        self._write_rows(row, elements[None])

    def _write_rows(self, first_row: int, rows: np.ndarray) -> None:
        is_grouped = self._dtype == INT4
        block = max(1, (GROUPED_BLOCK_ELEMENTS if is_grouped else BLOCK_ELEMENTS) // self._row_len)
        for start in range(0, len(rows), block):
            row, part = first_row + start, rows[start : start + block]
            values, *scales = quantize_groups(part, row) if is_grouped else quantize_rows(part, row, self._dtype)
            self._write_values(row * self._row_len, values.reshape(-1))
            for write, each in zip(self._write_scales, scales, strict=True):
                write(row * (each.size // len(part)), each.reshape(-1))
