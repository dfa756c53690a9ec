"""From a stored tensor to its place in a weight's array, any run of whole rows at a time.

A linear layer is stored [out, in] and served [in, out]. Numpy's own transposing copy walks one side against its memory
and comes to a few hundred megabytes a second for large layers; in strips it comes to ten times that.
"""

import math

import numpy as np

from service.models.interface import TensorSource, WeightSpec

# The rows of one strip, and what is left between them. Rows whose size is a power of two would all fall onto the same
# few lines of the processor's first cache, and be read from the second element by element.
STRIP_ROWS = 64
GAP_BYTES = 64


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

    def write(self, first: int, values: np.ndarray) -> None:
        """Put elements in place and cast them.

        Args:
            first: the number of the first element, in the order of storage; of a transposed tensor the first of a row.
            values: the elements, on one axis; of a transposed tensor whole rows.
        """
        for part in self._parts:
            if self._source.is_transposed:
                row_len = self._source.shape[-1]
                assert first % row_len == 0
                _write_rows(part, first // row_len, values.reshape(-1, row_len))
            else:
                _write_flat(part, first, values)


def _write_flat(part: np.ndarray, first: int, values: np.ndarray) -> None:
    width = part.shape[1]
    if part.flags.c_contiguous:
        part.reshape(-1)[first : first + len(values)] = values
        return
    row, column = divmod(first, width)
    while len(values):
        # The rest of a row that was begun, or as many whole rows as there are, or the beginning of the last.
        if column == 0 and len(values) >= width:
            num_rows = len(values) // width
            part[row : row + num_rows] = values[: num_rows * width].reshape(num_rows, width)
            row, values = row + num_rows, values[num_rows * width :]
        else:
            taken = min(width - column, len(values))
            part[row, column : column + taken] = values[:taken]
            row, column, values = row + 1, 0, values[taken:]


def _write_rows(whole: np.ndarray, first_row: int, rows: np.ndarray) -> None:
    (num_parts, width), (num_rows, row_len) = whole.shape, rows.shape
    strip = np.empty((STRIP_ROWS, row_len + GAP_BYTES // whole.itemsize), whole.dtype)[:, :row_len]
    # [in before the joined axis, what is behind it or the runs that it cuts the rows into, the rows of a run]
    is_cut = num_parts % row_len == 0
    part = whole.reshape((row_len, -1, width) if is_cut else (num_parts, row_len // num_parts, -1))
    begin = 0
    while begin < num_rows:
        run, column = divmod(first_row + begin, part.shape[2])
        taken = min(STRIP_ROWS, part.shape[2] - column, num_rows - begin)
        strip[:taken] = rows[begin : begin + taken]
        into = part[:, run] if is_cut else part
        into[..., column : column + taken] = strip[:taken].T.reshape(*into.shape[:-1], taken)
        begin += taken
