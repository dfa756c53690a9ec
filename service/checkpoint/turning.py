"""From a stored tensor to its place in a weight's array, any run of whole rows at a time.

A linear layer is stored [out, in] and served [in, out]. Numpy's own transposing copy moves one element after the other
and comes to one gigabyte a second of bfloat16 where rows are long; XLA, as it takes over an array of the host,
transposes small squares in registers and comes to ten times that. Before jax is imported there is numpy alone.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from service.models.weight_spec import TensorSource, WeightSpec

if TYPE_CHECKING:
    import jax

type Turn = Callable[[np.ndarray], np.ndarray]
"""From some rows to the same, transposed; in memory of their own or as a view."""

# What is turned at once, of a tensor that comes whole; both sides should stay in the processor's caches.
BLOCK_BYTES = 8 * 1024 * 1024
# Numpy lets go of Python's lock to copy even a norm, and to get it back from a thread that imports takes longer.
SMALL_BYTES = 64 * 1024
# By size. Larger elements are not turned by XLA, which knows none of 64 bits unless it is told to.
BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32}


class TensorPlace:
    """Where the elements of one tensor belong in a weight's array on the host."""

    def __init__(self, spec: WeightSpec, index: int, weight: np.ndarray) -> None:
        """Find the part of `weight`, which has the shape of `spec`, that its source number `index` fills."""
        source = spec.sources[index]
        axis = spec.concat_axis
        inner = math.prod(spec.shape[axis + 1 :])
        begin = inner * sum(other.view[axis] for other in spec.sources[:index])
        width = inner * source.view[axis]
        self._source: TensorSource = source
        # The axes before the joined one are one axis of this, the joined one and those behind it the other.
        part = weight.reshape(-1, inner * spec.shape[axis])[:, begin : begin + width]
        # Copies alternate along the last of the axes before.
        self._parts = [part[copy :: source.copies] for copy in range(source.copies)]

    def write(self, first: int, values: np.ndarray, turn: Turn) -> None:
        """Put elements in place and cast them.

        Args:
            first: the number of the first element, in the order of storage; of a transposed tensor the first of a row.
            values: the elements, on one axis; of a transposed tensor whole rows.
            turn: transposes them.
        """
        for part in self._parts:
            if self._source.is_transposed:
                row_len = self._source.shape[-1]
                assert first % row_len == 0
                _write_rows(part, first // row_len, values.reshape(-1, row_len), turn)
            else:
                _write_flat(part, first, values)


def _write_flat(part: np.ndarray, first: int, values: np.ndarray) -> None:
    width = part.shape[1]
    if part.flags.c_contiguous:
        _put(part.reshape(-1)[first : first + len(values)], values)
        return
    row, column = divmod(first, width)
    while len(values):
        # The rest of a row that was begun, or as many whole rows as there are, or the beginning of the last.
        if column == 0 and len(values) >= width:
            num_rows = len(values) // width
            _put(part[row : row + num_rows], values[: num_rows * width].reshape(num_rows, width))
            row, values = row + num_rows, values[num_rows * width :]
        else:
            taken = min(width - column, len(values))
            _put(part[row, column : column + taken], values[:taken])
            row, column, values = row + 1, 0, values[taken:]


def _write_rows(whole: np.ndarray, first_row: int, rows: np.ndarray, turn: Turn) -> None:
    (num_parts, width), row_len = whole.shape, rows.shape[1]
    # [in before the joined axis, what is behind it or the runs that it cuts the rows into, the rows of a run]
    is_cut = num_parts % row_len == 0
    part = whole.reshape((row_len, -1, width) if is_cut else (num_parts, row_len // num_parts, -1))
    block_rows = max(1, BLOCK_BYTES // (row_len * rows.itemsize))
    for begin in range(0, len(rows), block_rows):
        block, place = turn(rows[begin : begin + block_rows]), first_row + begin
        while block.shape[1]:
            run, column = divmod(place, part.shape[2])
            num_runs = block.shape[1] // part.shape[2] if is_cut and column == 0 else 0
            if num_runs:
                into, taken = part[:, run : run + num_runs], num_runs * part.shape[2]
            else:
                taken = min(part.shape[2] - column, block.shape[1])
                into = (part[:, run] if is_cut else part)[..., column : column + taken]
            _put(into, block[:, :taken].reshape(into.shape))
            place, block = place + taken, block[:, taken:]


def turned_by_numpy(rows: np.ndarray) -> np.ndarray:
    """Return the rows transposed, as a view; whoever copies it does the turning."""
    return rows.T


def turned_by_xla(rows: np.ndarray) -> np.ndarray:
    """Return the rows transposed, where XLA can do it; once jax has found the devices."""
    turner = _turner()
    if turner is None or rows.itemsize not in BITS:
        return turned_by_numpy(rows)
    import jax

    bits = _as_bits(rows).T
    # A third of what `device_put` takes besides the turning, which is some 25 us.
    return np.asarray(jax.make_array_from_callback(bits.shape, turner, lambda _: bits)).view(rows.dtype)


@cache
def _turner() -> "jax.sharding.Sharding | None":
    import jax

    # Present beside an accelerator too, unless JAX_PLATFORMS names that alone.
    try:
        return jax.sharding.SingleDeviceSharding(jax.local_devices(backend="cpu")[0])
    except RuntimeError:
        return None


def _put(part: np.ndarray, values: np.ndarray) -> None:
    """Copy values to their place and cast them."""
    if part.dtype == values.dtype:
        to, bits = _as_bits(part), _as_bits(values)
        if bits.nbytes <= SMALL_BYTES and bits.flags.c_contiguous and to.flags.c_contiguous:
            memoryview(to).cast("B")[:] = memoryview(bits).cast("B")
        else:
            to[...] = bits
    elif (values.dtype.name, part.dtype.name) == ("bfloat16", "float32"):
        # bfloat16 is the upper half of a float32.
        np.left_shift(values.view(np.uint16), 16, out=part.view(np.uint32), dtype=np.uint32)
    else:
        part[...] = values


def _as_bits(values: np.ndarray) -> np.ndarray:
    # Numpy copies types of others, such as bfloat16, element by element and holds Python's lock meanwhile.
    return values.view(BITS.get(values.itemsize, values.dtype))
