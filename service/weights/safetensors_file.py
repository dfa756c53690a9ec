"""A virtual safetensors file that reads its tensors from other files on demand, so none is held in memory.

Strided tensors and those that are updated are held one at a time.

Source: https://github.com/huggingface/safetensors#format
"""

import json
import math
import struct
from bisect import bisect_right
from collections.abc import Mapping
from typing import override

import numpy as np

from service.errors import MalformedCheckpoint
from service.storage.objects import read_range
from service.storage.open_files import OpenFile
from service.storage.retry import RetryBudget
from service.storage.seekable import SeekableReader
from service.weights.low_rank import BLOCK_ELEMENTS, Update
from service.weights.safetensors import WIDE_DTYPES, TensorEntry
from service.weights.strided import in_order

# Element size in bytes, by safetensors dtype name.
ELEMENT_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
ALIGNMENT_BYTES = 8  # of the first tensor
METADATA = {"format": "pt"}  # required by transformers: the shapes are PyTorch's


def tensor_bytes(entry: TensorEntry) -> int:
    """Return the size of a tensor's elements, without gaps between them."""
    return math.prod(entry.shape) * ELEMENT_BYTES[entry.dtype_name]


class SafetensorsFile(SeekableReader):
    """A readable, seekable safetensors file made of tensors in other files."""

    def __init__(
        self,
        tensors: Mapping[str, tuple[OpenFile, TensorEntry]],
        budget: RetryBudget,
        updates: Mapping[str, Update] | None = None,
    ) -> None:
        """Lay out the file; nothing is read yet.

        Args:
            tensors: file and entry of each tensor, by name.
            budget: limits time and attempts of all reads.
            updates: what is added to tensors of floating types, by name.
        """
        super().__init__()
        self._budget, self._updates = budget, updates or {}
        # Sorted by element size, so that every tensor is aligned.
        self._tensors = sorted(tensors.items(), key=lambda item: -ELEMENT_BYTES[item[1][1].dtype_name])
        header: dict[str, object] = {"__metadata__": METADATA}
        self._starts, position = [], 0
        for name, (_, entry) in self._tensors:
            end = position + tensor_bytes(entry)
            header[name] = {"dtype": entry.dtype_name, "shape": entry.shape, "data_offsets": [position, end]}
            self._starts.append(position)
            position = end
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % ALIGNMENT_BYTES)
        self._header = struct.pack("<Q", len(text)) + text
        self._starts = [len(self._header) + start for start in self._starts]
        self.size_bytes = len(self._header) + position
        self._whole: tuple[str, bytes] = ("", b"")  # the last tensor that was made contiguous or updated

    @override
    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Read within the header or one tensor; raises as `RangeReader.readinto`, and MalformedCheckpoint."""
        if self._position < len(self._header):
            part = self._header[self._position : self._position + len(buffer)]
        elif self._position < self.size_bytes:
            # If several tensors start at the same byte, all but the last are empty.
            index = bisect_right(self._starts, self._position) - 1
            part = self._read(index, self._position - self._starts[index], len(buffer))
        else:
            part = b""
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)

    def _read(self, index: int, first: int, num_bytes: int) -> bytes:
        name, (file, entry) = self._tensors[index]
        num_bytes = min(num_bytes, tensor_bytes(entry) - first)
        if entry.strides is None and name not in self._updates:
            return read_range(file.source, file.info, entry.begin + first, num_bytes, self._budget)
        if self._whole[0] != name:
            data = read_range(file.source, file.info, entry.begin, entry.end - entry.begin, self._budget)
            unsigned = np.dtype(f"u{ELEMENT_BYTES[entry.dtype_name]}")
            elements = in_order(entry, np.frombuffer(data, np.uint8), unsigned)
            if name in self._updates:
                elements = _updated(file, name, elements.view(WIDE_DTYPES[entry.dtype_name]), self._updates[name])
            self._whole = (name, elements.tobytes())
        return self._whole[1][first : first + num_bytes]


def _updated(file: OpenFile, name: str, elements: np.ndarray, update: Update) -> np.ndarray:
    """Return the elements of a tensor, of shape [n], with an update added, in their own type."""
    sums = np.empty_like(elements)
    for first in range(0, len(elements), BLOCK_ELEMENTS):
        part = update.applied_to(first, elements[first : first + BLOCK_ELEMENTS]).astype(elements.dtype)
        if not np.isfinite(part.astype(np.float32)).all():
            reason = f"its sum with the adapter's update is not finite in {elements.dtype.name}."
            raise MalformedCheckpoint(file.source.uri, name, reason)
        sums[first : first + BLOCK_ELEMENTS] = part
    return sums
