"""Headers of safetensors objects, validated for consistency and against the model before any tensor is read.

Source: https://github.com/huggingface/safetensors#format (u64 header length, JSON header, then the bytes)
"""

import json
import math
import struct
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from service.errors import MalformedCheckpoint
from service.storage.objects import Extent, read_range
from service.storage.open_files import OpenFile
from service.storage.retry import RetryBudget

WIDE_DTYPES = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16)}
DTYPES = {
    **WIDE_DTYPES,
    **{"U8": np.dtype(np.uint8), "I8": np.dtype(np.int8), "I32": np.dtype(np.int32), "I64": np.dtype(np.int64)},
    **{"F64": np.dtype(np.float64), "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2)},
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
}
# The library's own bound; a header this long names millions of tensors.
MAX_HEADER_BYTES = 100_000_000
MAX_TENSORS = 262_144  # of all files of a checkpoint; an entry takes most of a kilobyte
# Signs between the values of a header: those of an entry, and of what else it may have.
SIGNS_PER_TENSOR, OTHER_SIGNS = 24, 200_000
# Bytes of the headers of all files together, which are kept until they are verified: an entry has about 130 on average.
BYTES_PER_TENSOR, OTHER_BYTES = 256, 16 * 1024 * 1024
INT64_MAX, MAX_AXES = 2**63 - 1, 16
LFS_POINTER = b"version https://git-lfs"  # source: git-lfs `docs/spec.md`
PREFIX_BYTES = 8  # the length of the header
# Fits the header of a model of a few billion parameters; reading too much is cheaper than a second round trip.
FIRST_READ_BYTES = 128 * 1024


@dataclass(frozen=True)
class TensorEntry:
    """The header's entry for one tensor."""

    file: str
    dtype_name: str  # as the header spells it: "BF16"
    shape: tuple[int, ...]
    begin: int  # offset in the file
    end: int  # one past the last byte
    strides: tuple[int, ...] | None = None  # in elements; None if row-major without gaps
    part_of: tuple[str, int] | None = None  # the tensor that it continues, and its first element there; None for none

    def place_in(self, name: str) -> tuple[str, int]:
        """Return the tensor that its elements belong to, given its own name, and the place of the first in it."""
        return (name, 0) if self.part_of is None else self.part_of


@dataclass(frozen=True)
class Header:
    """The tensors of one object."""

    file: OpenFile
    data: bytes  # the object's first bytes, if they are the header and not yet verified
    entries: Mapping[str, TensorEntry]  # by tensor
    extents: tuple[Extent, ...]  # all bytes after `data`


class HeaderRoom:
    """The bytes and tensors that the headers of a checkpoint's files may still have; several threads may use it."""

    def __init__(self, most: int = MAX_TENSORS) -> None:
        """Set how many tensors all files together may have."""
        self._most, self._left, self._lock = most, most, threading.Lock()
        self._most_bytes = self._left_bytes = BYTES_PER_TENSOR * most + OTHER_BYTES

    def take(self, uri: str, file: str, num_bytes: int) -> None:
        """Count the bytes of a header, before they are read.

        Raises:
            MalformedCheckpoint: it has more than are left.
        """
        with self._lock:
            self._left_bytes -= num_bytes
            left_bytes = self._left_bytes
        if left_bytes < 0:
            reason = f"the headers have more than {self._most_bytes} bytes, too many for {self._most} tensors."
            raise MalformedCheckpoint(uri, file, reason)

    def check(self, uri: str, file: str, header: bytes) -> None:
        """Count the tensors of a header, before it is parsed.

        Raises:
            MalformedCheckpoint: it has more than are left, or values besides those of tensors.
        """
        with self._lock:
            self._left -= header.count(b'"data_offsets"')
            left = self._left
        # Defends against T45.
        if left < 0 or header.count(b":") + header.count(b",") > SIGNS_PER_TENSOR * self._most + OTHER_SIGNS:
            raise MalformedCheckpoint(uri, file, f"the headers have more than {self._most} tensors, too many for it.")


def read_header(file: OpenFile, budget: RetryBudget, room: HeaderRoom | None = None) -> Header:
    """Read the header of one object, which shares `room` with others.

    Raises:
        MalformedCheckpoint: the header does not describe the bytes that follow it.
        ObjectChanged, TransferFailed: see `RangeReader`.
    """
    source, info, room = file.source, file.info, room or HeaderRoom()
    data = read_range(source, info, 0, min(FIRST_READ_BYTES, info.size_bytes), budget)
    num_bytes = header_size(source.uri, info.name, data, info.size_bytes)
    room.take(source.uri, info.name.rpartition("/")[2], num_bytes)
    if num_bytes > len(data):
        data += read_range(source, info, len(data), num_bytes - len(data), budget)
    data = data[:num_bytes]
    room.check(source.uri, info.name.rpartition("/")[2], data)
    entries = parse_header(source.uri, info.name.rpartition("/")[2], data, info.size_bytes)
    return Header(file, data, entries, _extents(entries.values()))


def header_size(uri: str, file: str, start: bytes, size_bytes: int) -> int:
    """Return the number of bytes of a file before its first tensor.

    Args:
        uri: the checkpoint's address, for error messages.
        file: the file's name, for error messages.
        start: the file's first bytes, at least eight unless the file is shorter.
        size_bytes: the file's size.

    Raises:
        MalformedCheckpoint: the header would be longer than the file or than the format allows.
    """
    if start.startswith(LFS_POINTER):
        raise MalformedCheckpoint(uri, file, "is a pointer of Git LFS, and not the file. Fetch it with git lfs pull.")
    if len(start) < PREFIX_BYTES:
        raise MalformedCheckpoint(uri, file, f"has {size_bytes} bytes, too few for a safetensors header.")
    (header_bytes,) = struct.unpack("<Q", start[:PREFIX_BYTES])
    # Defends against T16.
    if header_bytes > min(MAX_HEADER_BYTES, size_bytes - PREFIX_BYTES):
        raise MalformedCheckpoint(
            uri,
            file,
            f"claims a header of {header_bytes} bytes; the file has {size_bytes}. It is truncated or not safetensors.",
        )
    return PREFIX_BYTES + header_bytes


def parse_header(uri: str, file: str, header: bytes, size_bytes: int) -> dict[str, TensorEntry]:
    """Parse a file's header, including its length, and check it against the file's size.

    Raises:
        MalformedCheckpoint: the header does not describe the bytes that follow it.
    """
    try:
        values = json.loads(header[PREFIX_BYTES:])
    except (ValueError, RecursionError) as error:
        raise MalformedCheckpoint(uri, file, "the header is not JSON.") from error
    if not isinstance(values, dict):
        raise MalformedCheckpoint(uri, file, "the header is not a JSON object.")
    metadata = values.pop("__metadata__", None)
    entries = {name: _entry(uri, file, name, value, len(header)) for name, value in values.items()}
    _check_layout(uri, file, list(entries.values()), len(header), size_bytes)
    # Of tensors that share their memory `save_model` writes one, and says which others it stands for.
    # Source: safetensors `bindings/python/py_src/safetensors/torch.py` (save_model)
    shared = [(name, str(kept)) for name, kept in metadata.items()] if isinstance(metadata, dict) else ()
    return entries | {name: entries[kept] for name, kept in shared if kept in entries and name not in entries}


def _entry(uri: str, file: str, name: str, value: Any, start: int) -> TensorEntry:
    try:
        begin, end = value["data_offsets"]
        entry = TensorEntry(file, str(value["dtype"]), tuple(value["shape"]), start + begin, start + end)
        numbers_are_whole = all(type(n) is int and 0 <= n <= INT64_MAX for n in (*entry.shape, begin, end))
    except (TypeError, KeyError, ValueError) as error:
        raise MalformedCheckpoint(uri, file, f"the header's entry for {name!r} is malformed.") from error
    if not numbers_are_whole or begin > end or len(entry.shape) > MAX_AXES:
        raise MalformedCheckpoint(uri, file, f"the header's entry for {name!r} has impossible numbers.")
    dtype = DTYPES.get(entry.dtype_name)
    needed = math.prod(entry.shape) * dtype.itemsize if dtype else None
    if needed is not None and needed != end - begin:
        raise MalformedCheckpoint(
            uri,
            file,
            f"{name!r} of shape {list(entry.shape)} in {entry.dtype_name} needs {needed} bytes; "
            f"the header gives it {end - begin}.",
        )
    return entry


def _check_layout(uri: str, file: str, entries: Sequence[TensorEntry], start: int, size: int) -> None:
    """Check that the tensors fill the file without gaps or overlaps, as the format requires."""
    position = start
    for entry in sorted(entries, key=lambda e: (e.begin, e.end)):
        if entry.begin != position:
            raise MalformedCheckpoint(uri, file, f"the header's offsets leave a gap or overlap at {entry.begin}.")
        position = entry.end
    if position != size:
        raise MalformedCheckpoint(
            uri, file, f"the header describes {position} bytes; the file has {size}. It is truncated or invalid."
        )


def _extents(entries: Iterable[TensorEntry]) -> tuple[Extent, ...]:
    """Return where the bytes of an object may be split: between elements."""
    result = []
    unshared = {(entry.begin, entry.end): entry for entry in entries}
    for _, entry in sorted(unshared.items(), key=lambda item: item[0]):
        dtype = DTYPES.get(entry.dtype_name)
        unit_bytes = dtype.itemsize if dtype is not None else 1
        result.append(Extent(entry.end - entry.begin, unit_bytes))
    return tuple(result)
