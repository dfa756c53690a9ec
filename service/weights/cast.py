"""Fast numpy casts and copies between arrays of different dtypes."""

import numpy as np

# Numpy releases the GIL even to copy a norm, and reacquiring it from an importing thread takes longer than the copy.
SMALL_BYTES = 64 * 1024
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32}  # by size in bytes


def cast_into(part: np.ndarray, values: np.ndarray) -> None:
    """Copy values into an array of the same shape and any dtype."""
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
    # Numpy copies extension dtypes such as bfloat16 element by element while holding the GIL.
    return values.view(UNSIGNED.get(values.itemsize, values.dtype))
