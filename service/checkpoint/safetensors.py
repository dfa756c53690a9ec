"""Tensors of safetensors files, mapped and never copied before use; every number of a header is checked first.

Source: https://github.com/huggingface/safetensors#format (u64 header length, JSON header, then the bytes)
"""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from service.errors import MalformedCheckpoint

DTYPES = {"F32": np.dtype(np.float32), "F16": np.dtype(np.float16), "BF16": np.dtype(ml_dtypes.bfloat16)}
# The library's own bound; a header this long names millions of tensors.
MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True)
class TensorEntry:
    """Where one tensor lies."""

    file: Path
    dtype_name: str  # as the header spells it: "BF16"
    shape: tuple[int, ...]
    begin: int  # byte in the file
    end: int


def read_entries(uri: str, file: Path) -> dict[str, TensorEntry]:
    """Read one file's header.

    Args:
        uri: the checkpoint's address, for messages.
        file: a `.safetensors` file.

    Raises:
        MalformedCheckpoint: the header does not describe the bytes that follow it.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        prefix = stream.read(8)
        if len(prefix) < 8:
            raise MalformedCheckpoint(uri, file.name, f"has {size} bytes, too few for a safetensors header.")
        (header_bytes,) = struct.unpack("<Q", prefix)
        if header_bytes > min(MAX_HEADER_BYTES, size - 8):
            raise MalformedCheckpoint(
                uri,
                file.name,
                f"claims a header of {header_bytes} bytes; the file has {size}. It is cut or no safetensors.",
            )
        try:
            header = json.loads(stream.read(header_bytes))
        except (ValueError, RecursionError) as error:
            raise MalformedCheckpoint(uri, file.name, "the header is no JSON.") from error
    if not isinstance(header, dict):
        raise MalformedCheckpoint(uri, file.name, "the header is no JSON object.")
    header.pop("__metadata__", None)
    start = 8 + header_bytes
    entries = {name: _entry(uri, file, name, value, start) for name, value in header.items()}
    _check_layout(uri, file, list(entries.values()), start, size)
    return entries


def _entry(uri: str, file: Path, name: str, value: Any, start: int) -> TensorEntry:
    try:
        begin, end = value["data_offsets"]
        entry = TensorEntry(file, str(value["dtype"]), tuple(value["shape"]), start + begin, start + end)
        numbers_are_whole = all(isinstance(n, int) and n >= 0 for n in (*entry.shape, begin, end))
    except (TypeError, KeyError, ValueError) as error:
        raise MalformedCheckpoint(uri, file.name, f"the header's entry for {name!r} is malformed.") from error
    if not numbers_are_whole or begin > end:
        raise MalformedCheckpoint(uri, file.name, f"the header's entry for {name!r} has impossible numbers.")
    dtype = DTYPES.get(entry.dtype_name)
    needed = math.prod(entry.shape) * dtype.itemsize if dtype else None
    if needed is not None and needed != end - begin:
        raise MalformedCheckpoint(
            uri,
            file.name,
            f"{name!r} of shape {list(entry.shape)} in {entry.dtype_name} needs {needed} bytes; "
            f"the header gives it {end - begin}.",
        )
    return entry


def _check_layout(uri: str, file: Path, entries: Sequence[TensorEntry], start: int, size: int) -> None:
    """Check that the tensors fill the file without gap or overlap, as the format demands."""
    position = start
    for entry in sorted(entries, key=lambda e: (e.begin, e.end)):
        if entry.begin != position:
            raise MalformedCheckpoint(uri, file.name, f"the header's offsets leave a gap or overlap at {entry.begin}.")
        position = entry.end
    if position != size:
        raise MalformedCheckpoint(
            uri, file.name, f"the header describes {position} bytes; the file has {size}. It is cut, or lies."
        )


class TensorFiles(Mapping[str, np.ndarray]):
    """The tensors of several files under one roof, each read when it is asked for."""

    def __init__(self, uri: str, files: Sequence[Path]) -> None:
        """Read all headers.

        Raises:
            MalformedCheckpoint: a header lies, or two files hold a tensor of one name.
        """
        self._uri = uri
        self.entries: dict[str, TensorEntry] = {}
        for file in files:
            for name, entry in read_entries(uri, file).items():
                if name in self.entries:
                    raise MalformedCheckpoint(uri, file.name, f"{name!r} is in {self.entries[name].file.name} too.")
                self.entries[name] = entry

    def __getitem__(self, name: str) -> np.ndarray:
        entry = self.entries[name]
        dtype = DTYPES.get(entry.dtype_name)
        if dtype is None:
            raise MalformedCheckpoint(
                self._uri, entry.file.name, f"{name!r} is {entry.dtype_name}; served are {', '.join(DTYPES)}."
            )
        if not math.prod(entry.shape):
            return np.zeros(entry.shape, dtype)
        return np.memmap(entry.file, dtype, "r", offset=entry.begin, shape=entry.shape)

    def __iter__(self):  # noqa: ANN204 - Mapping's own
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)
