"""Objects pinned to one version: checks that their names are safe paths, and division of their bytes into ranges.

Object names become paths, and anyone who can write to the bucket chooses them, so they are checked before any download.
A bad name is refused rather than sanitized: two names must never become one file.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from service.errors import HostileName
from service.storage.retry import RetryBudget

# Names reserved for the cache's own files: the record of a checkpoint, and `.*.part` for incomplete files.
RECORD_NAME = "COMPLETE.json"
PART_SUFFIX = ".part"

# A temporary name adds the process id and a random part to the object's; file systems allow 255 bytes.
MAX_SEGMENT_BYTES = 200
MAX_NAME_BYTES = 1024  # Source: https://cloud.google.com/storage/docs/objects#naming


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One file of a checkpoint."""

    name: str  # relative to the location, folders divided by "/"
    size_bytes: int
    crc32c: str = ""  # base64 of the big-endian checksum, as in GCS; empty if the source has none
    generation: int = 0  # the version: GCS's generation, or a local file's mtime in ns
    content_encoding: str = ""  # "gzip": the stored bytes are compressed and the file's are not

    @property
    def is_gzipped(self) -> bool:
        return self.content_encoding.strip().lower() == "gzip"


def check_name(uri: str, name: str) -> None:
    """Check that a name stays inside its folder and means the same on all file systems.

    Raises:
        HostileName: the name is unsafe; the message says why.
    """
    segments = name.split("/")
    reason = None
    if not name or len(name.encode(errors="replace")) > MAX_NAME_BYTES:
        reason = "is empty or too long"
    elif any(ord(character) < 32 or ord(character) == 127 for character in name):
        reason = "has a control character"
    elif any(0xD800 <= ord(character) <= 0xDFFF for character in name):
        reason = "is not valid Unicode"
    elif "\\" in name:
        reason = "has a backslash"
    elif name.startswith("/"):
        reason = "is an absolute path"
    elif any(segment in (".", "..") for segment in segments):
        reason = "leads to another folder"
    elif "" in segments:
        reason = "has an empty folder name"
    elif any(len(segment.encode()) > MAX_SEGMENT_BYTES for segment in segments):
        reason = f"has a part of more than {MAX_SEGMENT_BYTES} bytes"
    if reason is not None:
        raise HostileName(uri, name, reason)


def check_names_together(uri: str, objects: Iterable[ObjectInfo]) -> None:
    """Check that objects can be files of one folder.

    Raises:
        HostileName: two names differ in case only, one is a folder of another, or one is reserved for the cache.
    """
    files: dict[str, str] = {}
    for info in objects:
        check_name(uri, info.name)
        base = info.name.rsplit("/", 1)[-1]
        if info.name.casefold() == RECORD_NAME.casefold() or (base.startswith(".") and base.endswith(PART_SUFFIX)):
            raise HostileName(uri, info.name, "is reserved for the cache's own files")
        if (other := files.setdefault(info.name.casefold(), info.name)) != info.name:
            raise HostileName(uri, info.name, f"differs from {other!r} in case only")
    for name in files.values():
        folder, slash, _ = name.rpartition("/")
        while slash:
            if folder.casefold() in files:
                raise HostileName(uri, folder, f"is both a file and the folder of {name!r}")
            folder, slash, _ = folder.rpartition("/")


@runtime_checkable
class RangeReader(Protocol):
    """An open range, read once from start to end by one thread."""

    def readinto(self, buffer: memoryview) -> None:
        """Fill the buffer with the next bytes of the range.

        Raises:
            ObjectChanged: the object was overwritten or deleted since it was listed.
            TransferFailed: retries or the deadline ran out, or the transfer was cancelled.
        """
        ...


@runtime_checkable
class RangeSource(Protocol):
    """A source whose objects can be read by range, from several threads at once."""

    uri: str

    def open_range(
        self, info: ObjectInfo, start: int, num_bytes: int, budget: RetryBudget
    ) -> AbstractContextManager[RangeReader]:
        """Open `num_bytes` bytes of an object from byte `start`; the first read may request all of them."""
        ...


def read_range(source: RangeSource, info: ObjectInfo, start: int, num_bytes: int, budget: RetryBudget) -> bytes:
    """Read a short range into memory; raises as `RangeReader.readinto`."""
    data = bytearray(num_bytes)
    with source.open_range(info, start, num_bytes, budget) as reader:
        reader.readinto(memoryview(data))
    return bytes(data)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes that are read, checksummed and used together, while they are in the CPU's cache."""

    start: int  # byte of the object
    end: int  # one past the last byte

    @property
    def num_bytes(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Slice:
    """The bytes of one request: adjacent chunks."""

    chunks: tuple[Chunk, ...]

    @property
    def start(self) -> int:
        return self.chunks[0].start

    @property
    def end(self) -> int:
        return self.chunks[-1].end

    @property
    def num_bytes(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes of an object that may be split only at multiples of a unit, such as one element of a tensor."""

    num_bytes: int
    unit_bytes: int


def divide(start: int, extents: Iterable[Extent], *, chunk_bytes: int, slice_bytes: int) -> tuple[Slice, ...]:
    """Divide adjacent extents into slices of chunks; return at least one slice, which may be empty.

    Args:
        start: the offset of the first extent in the object.
        extents: the extents in storage order.
        chunk_bytes: the maximum length of a chunk, unless a single unit is longer.
        slice_bytes: the maximum length of a slice, unless a single chunk is longer.
    """
    slices: list[Slice] = []
    together: list[Chunk] = []
    for chunk in _chunks(start, extents, min(chunk_bytes, slice_bytes)):
        if together and chunk.end - together[0].start > slice_bytes:
            slices.append(Slice(tuple(together)))
            together = []
        together.append(chunk)
    return (*slices, Slice(tuple(together)))


def _chunks(start: int, extents: Iterable[Extent], chunk_bytes: int) -> list[Chunk]:
    chunks: list[Chunk] = []
    begin = end = start
    for extent in extents:
        left = extent.num_bytes
        while left:
            room = (begin + chunk_bytes - end) // extent.unit_bytes * extent.unit_bytes
            if room <= 0 and end > begin:
                chunks.append(Chunk(begin, end))
                begin = end
                continue
            taken = min(left, max(room, extent.unit_bytes))
            end += taken
            left -= taken
    if end > begin or not chunks:
        chunks.append(Chunk(begin, end))
    return chunks
