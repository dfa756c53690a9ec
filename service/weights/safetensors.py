"""Headers of safetensors files; every number is checked before a byte of a tensor is moved.

Source: https://github.com/huggingface/safetensors#format (u64 header length, JSON header, then the bytes)
"""

import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from service.errors import MalformedCheckpoint

DTYPES = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16)}
# The library's own bound; a header this long names millions of tensors.
MAX_HEADER_BYTES = 100_000_000
PREFIX_BYTES = 8  # the header's length


@dataclass(frozen=True)
class TensorEntry:
    """Where one tensor lies."""

    file: str
    dtype_name: str  # as the header spells it: "BF16"
    shape: tuple[int, ...]
    begin: int  # byte in the file
    end: int


def header_size(uri: str, file: str, start: bytes, size_bytes: int) -> int:
    """Return how many bytes of a file come before its first tensor.

    Args:
        uri: the checkpoint's address, for messages.
        file: the file's name, for messages.
        start: the file's first bytes, eight at least if it has so many.
        size_bytes: the file's size.

    Raises:
        MalformedCheckpoint: the header would be longer than the file, or than any header is.
    """
    if len(start) < PREFIX_BYTES:
        raise MalformedCheckpoint(uri, file, f"has {size_bytes} bytes, too few for a safetensors header.")
    (header_bytes,) = struct.unpack("<Q", start[:PREFIX_BYTES])
    if header_bytes > min(MAX_HEADER_BYTES, size_bytes - PREFIX_BYTES):
        raise MalformedCheckpoint(
            uri,
            file,
            f"claims a header of {header_bytes} bytes; the file has {size_bytes}. It is cut or no safetensors.",
        )
    return PREFIX_BYTES + header_bytes


def parse_header(uri: str, file: str, header: bytes, size_bytes: int) -> dict[str, TensorEntry]:
    """Read a file's header, its length included, and check it against the file's size.

    Raises:
        MalformedCheckpoint: the header does not describe the bytes that follow it.
    """
    try:
        values = json.loads(header[PREFIX_BYTES:])
    except (ValueError, RecursionError) as error:
        raise MalformedCheckpoint(uri, file, "the header is no JSON.") from error
    if not isinstance(values, dict):
        raise MalformedCheckpoint(uri, file, "the header is no JSON object.")
    values.pop("__metadata__", None)
    entries = {name: _entry(uri, file, name, value, len(header)) for name, value in values.items()}
    _check_layout(uri, file, list(entries.values()), len(header), size_bytes)
    return entries


def merged(uri: str, parts: Iterable[Mapping[str, TensorEntry]]) -> dict[str, TensorEntry]:
    """Put the tensors of several files under one roof.

    Raises:
        MalformedCheckpoint: two files hold a tensor of one name.
    """
    entries: dict[str, TensorEntry] = {}
    for part in parts:
        for name, entry in part.items():
            if name in entries:
                raise MalformedCheckpoint(uri, entry.file, f"{name!r} is in {entries[name].file} too.")
            entries[name] = entry
    return entries


def stored_dtype(uri: str, name: str, entry: TensorEntry) -> np.dtype:
    """Return a tensor's type.

    Raises:
        MalformedCheckpoint: it is one that is not served.
    """
    dtype = DTYPES.get(entry.dtype_name)
    if dtype is None:
        raise MalformedCheckpoint(uri, entry.file, f"{name!r} is {entry.dtype_name}; served are {', '.join(DTYPES)}.")
    return dtype


def _entry(uri: str, file: str, name: str, value: Any, start: int) -> TensorEntry:
    try:
        begin, end = value["data_offsets"]
        entry = TensorEntry(file, str(value["dtype"]), tuple(value["shape"]), start + begin, start + end)
        numbers_are_whole = all(type(n) is int and n >= 0 for n in (*entry.shape, begin, end))
    except (TypeError, KeyError, ValueError) as error:
        raise MalformedCheckpoint(uri, file, f"the header's entry for {name!r} is malformed.") from error
    if not numbers_are_whole or begin > end:
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
    """Check that the tensors fill the file without gap or overlap, as the format demands."""
    position = start
    for entry in sorted(entries, key=lambda e: (e.begin, e.end)):
        if entry.begin != position:
            raise MalformedCheckpoint(uri, file, f"the header's offsets leave a gap or overlap at {entry.begin}.")
        position = entry.end
    if position != size:
        raise MalformedCheckpoint(
            uri, file, f"the header describes {position} bytes; the file has {size}. It is cut, or lies."
        )
