"""The headers of safetensors objects, by ranged reads: what says where each tensor lies."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath

from service.storage.fetch import ByteRanges
from service.storage.objects import ObjectInfo
from service.storage.retry import Patience
from service.weights.safetensors import TensorEntry, header_size, parse_header

# Read at first: the header of a model of a few billion parameters fits, and a round trip costs more than these bytes.
FIRST_READ_BYTES = 128 * 1024


@dataclass(frozen=True)
class Origin:
    """An object of weights, and what it is read from."""

    source: ByteRanges
    info: ObjectInfo


@dataclass(frozen=True)
class Header:
    """The bytes of one object before its first tensor, as they came; nothing has summed them yet."""

    origin: Origin
    data: bytes

    def entries(self) -> dict[str, TensorEntry]:
        """Read the header.

        Raises:
            MalformedCheckpoint: it does not describe the bytes that follow it.
        """
        info = self.origin.info
        return parse_header(self.origin.source.uri, PurePosixPath(info.name).name, self.data, info.size_bytes)


def read_headers(origins: Sequence[Origin], patience: Patience) -> list[Header]:
    """Read the headers of several objects, in parallel.

    Raises:
        MalformedCheckpoint: an object claims a header that is longer than the object.
        ObjectChanged, TransferFailed: see `ByteRanges`.
    """
    with ThreadPoolExecutor(min(len(origins), patience.limits.num_workers), thread_name_prefix="header") as pool:
        return list(pool.map(lambda origin: _read_header(origin, patience), origins))


def _read_header(origin: Origin, patience: Patience) -> Header:
    source, info = origin.source, origin.info
    start = _read(origin, 0, min(FIRST_READ_BYTES, info.size_bytes), patience)
    num_bytes = header_size(source.uri, info.name, start, info.size_bytes)
    rest = _read(origin, len(start), num_bytes - len(start), patience) if num_bytes > len(start) else b""
    return Header(origin, start[:num_bytes] + rest)


def _read(origin: Origin, start: int, length: int, patience: Patience) -> bytes:
    data = bytearray(length)
    done_bytes = 0

    def room() -> memoryview:
        return memoryview(data)[done_bytes:]

    def attempt() -> None:
        nonlocal done_bytes
        left_bytes = length - done_bytes
        for num_bytes in origin.source.stream(origin.info, start + done_bytes, left_bytes, room, patience):
            done_bytes += num_bytes

    patience.try_often(attempt, origin.source.uri, origin.info.name)
    return bytes(data)
