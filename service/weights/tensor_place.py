"""From a stored tensor to its place in a weight's array, any run of elements at a time."""

import math

import numpy as np

from service.models.weight_spec import WeightSpec

# Numpy lets go of Python's lock to copy even a norm, and to get it back from a thread that imports takes longer.
SMALL_BYTES = 64 * 1024
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32}  # by size


class TensorPlace:
    """Where the elements of one tensor belong in a weight's array on the host."""

    def __init__(self, spec: WeightSpec, index: int, weight: np.ndarray) -> None:
        """Find the part of `weight`, which has the shape of `spec`, that its source number `index` fills."""
        source = spec.sources[index]
        axis = spec.concat_axis
        inner = math.prod(spec.shape[axis + 1 :])
        begin = inner * sum(other.view[axis] for other in spec.sources[:index])
        width = inner * source.view[axis]
        # The axes before the joined one are one axis of this, the joined one and those behind it the other.
        part = weight.reshape(-1, inner * spec.shape[axis])[:, begin : begin + width]
        # Copies alternate along the last of the axes before.
        self._parts = [part[copy :: source.copies] for copy in range(source.copies)]

    def write(self, first: int, values: np.ndarray) -> None:
        """Put elements in place and cast them.

        Args:
            first: the number of the first element, in the order of storage.
            values: the elements, on one axis.
        """
        for part in self._parts:
            _write(part, first, values)


def _write(part: np.ndarray, first: int, values: np.ndarray) -> None:
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
    return values.view(UNSIGNED.get(values.itemsize, values.dtype))
