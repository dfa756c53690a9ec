"""The input of a batch in shards: files pinned to their versions, and the chunks that they are cut into.

A chunk is a range of bytes of one file that ends with a line: after 256 lines, before the sum of the tokens that its
lines may ask for passes a limit, or before its bytes do. It depends on the input alone, so that all processes cut the
same ones. Each process reads the whole input once to cut it.
"""

import errno
import io
import logging
import os
from array import array
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, override

import numpy as np
from pydantic_core import from_json

from service.api.batch.lines import URLS, BadLine, BatchLine, numbered_lines, parse_line
from service.api.batch.recordings import AUDIO_URLS
from service.errors import CheckpointNotFound, CorruptObject, HostileName, ObjectChanged
from service.offline.batch_file import BatchFileError
from service.storage import crc32c
from service.storage.gcs.read import GcsSource
from service.storage.local import LocalSource
from service.storage.location import GcsLocation, LocalLocation
from service.storage.objects import ObjectInfo, RangeSource
from service.storage.open_files import FolderRanges
from service.storage.retry import RetryBudget, TransferLimits

logger = logging.getLogger(__name__)

SUFFIX = ".jsonl"  # of batch files in a folder, which may hold recordings beside them
CHUNK_LINES = 256
CHUNK_TOKENS = 131_072  # about two minutes of an L4
CHUNK_BYTES = 64 * 1024 * 1024  # two chunks are in memory
MAX_LINE_BYTES = 64 * 1024 * 1024  # a recording of 25 MiB in base64, and more than any body may have
UNSTATED_TOKENS = 256  # what a line counts for that limits nothing
BUFFER_BYTES = 1024 * 1024
LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some lines of one file."""

    number: int  # from 0, over all files
    file: ObjectInfo
    start: int  # byte of the file
    end: int  # one past the last byte
    first_line: int  # of the file, from 1
    num_lines: int  # that are not blank
    lines_crc: int  # crc32c of these lines


@dataclass(frozen=True, slots=True)
class ChunkLine:
    """A line of a chunk: a request, or the reason why it is none."""

    number: int  # of the file, from 1
    request: BatchLine | None
    refusal: dict[str, Any] = field(default_factory=dict)  # the line of the output, if there is no request


@dataclass(frozen=True)
class BatchInput:
    """All files of an input."""

    uri: str
    files: tuple[ObjectInfo, ...]  # each with the crc32c of its content
    chunks: tuple[Chunk, ...]
    _source: LocalSource | GcsSource
    _location: LocalLocation | GcsLocation

    @property
    def num_lines(self) -> int:
        return sum(chunk.num_lines for chunk in self.chunks)

    def lines(self, chunk: Chunk) -> list[ChunkLine]:
        """Read the lines of a chunk.

        Raises:
            ObjectChanged: the file was replaced since it was cut.
            CheckpointError: it cannot be read.
        """
        lines, crc = [], 0
        with _opened(self._source, chunk.file, chunk.start, chunk.end) as file:
            for number, text in numbered_lines(file, MAX_LINE_BYTES):
                crc = crc32c.extend(crc, b"" if isinstance(text, BadLine) else text)
                lines.append(_parsed(chunk.first_line + number - 1, text))
        if (len(lines), crc) != (chunk.num_lines, chunk.lines_crc):
            raise ObjectChanged(self.uri, chunk.file.name, chunk.file.generation)
        return lines

    def read_beside(self, file: ObjectInfo, name: str) -> bytes:
        """Read what a line of a file names by its path relative to that file.

        Raises:
            OSError: it does not exist, or cannot be read.
            CheckpointError: the bucket failed.
        """
        if isinstance(self._location, LocalLocation):
            return (self._location.path / file.name).parent.joinpath(name).read_bytes()
        assert isinstance(self._source, GcsSource)
        path = "/".join([*file.name.split("/")[:-1], name])
        try:
            found = self._source.read_live(path)
        except HostileName as error:
            raise OSError(errno.EINVAL, "the name leads out of the input", name) from error
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)
        return found[1]

    def close(self) -> None:
        self._source.close()


def open_input(location: LocalLocation | GcsLocation, *, emulator_host: str | None, is_single: bool) -> BatchInput:
    """Pin the files of an input and cut them into chunks; each file is read once.

    Args:
        location: a file, or a folder of files that end with `.jsonl`.
        emulator_host: STORAGE_EMULATOR_HOST.
        is_single: whether the answers become one file, so that no custom_id may be in two.

    Raises:
        BatchFileError: there is no line, or a custom_id is there twice.
        CheckpointError: the bucket or a file cannot be read.
    """
    source, within, files = _pinned(location, emulator_host)
    whole: list[ObjectInfo] = []
    chunks: list[Chunk] = []
    ids = [_Ids()] if is_single else []
    for info in files:
        if info.is_gzipped:
            raise BatchFileError(f"{within.uri}/{info.name}", 0, "is stored with gzip. Upload it without.")
        cutting = _Cutting(info, len(chunks), ids[0] if is_single else _Ids())
        with _opened(source, info, 0, info.size_bytes) as file:
            cutting.cut(file)
            assert isinstance(file.raw, _PinnedReader)
            actual = crc32c.to_text(file.raw.crc)
        if info.crc32c and actual != info.crc32c:
            raise CorruptObject(within.uri, info.name, expected=info.crc32c, actual=actual)
        whole.append(ObjectInfo(info.name, info.size_bytes, actual, info.generation))
        chunks += cutting.chunks
        if not is_single:
            _refuse_doubles(cutting.ids, source, within.uri, [info])
    if is_single:
        _refuse_doubles(ids[0], source, within.uri, files)
    if not chunks:
        raise BatchFileError(location.uri, 0, "has no lines.")
    return BatchInput(location.uri, tuple(whole), tuple(chunks), source, within)


def _pinned(
    location: LocalLocation | GcsLocation, emulator_host: str | None
) -> tuple[LocalSource | GcsSource, LocalLocation | GcsLocation, list[ObjectInfo]]:
    """Return where the files of an input are, and the files, each pinned to its version."""
    if isinstance(location, LocalLocation):
        path = location.path
        if path.is_file():
            status, folder = path.stat(), LocalLocation(path.parent)
            return LocalSource(folder), folder, [ObjectInfo(path.name, status.st_size, generation=status.st_mtime_ns)]
        return _listed(LocalSource(location), location)
    folder, _, name = location.prefix.rpartition("/")
    if name:
        beside = GcsLocation(location.bucket, folder)
        source = GcsSource(beside, emulator_host=emulator_host, limits=TransferLimits())
        if (info := source.find(name)) is not None:
            return source, beside, [info]
        source.close()
    return _listed(GcsSource(location, emulator_host=emulator_host, limits=TransferLimits()), location)


def _listed(
    source: LocalSource | GcsSource, location: LocalLocation | GcsLocation
) -> tuple[LocalSource | GcsSource, LocalLocation | GcsLocation, list[ObjectInfo]]:
    try:
        listed = source.list()
    except CheckpointNotFound as error:
        reason = (
            f"there is no batch file. Name one, or a folder or a bucket's folder with files that end with {SUFFIX}."
        )
        raise BatchFileError(location.uri, 0, reason) from error
    files = sorted((info for info in listed if info.name.endswith(SUFFIX)), key=lambda info: info.name)
    if not files:
        raise BatchFileError(location.uri, 0, f"none of its {len(listed)} files ends with {SUFFIX}.")
    if others := len(listed) - len(files):
        logger.info("files that are no batch files are not read", extra={"files": others, "uri": location.uri})
    return source, location, files


class _Ids:
    """The custom_ids of an input as 8 bytes each, since there may be many millions."""

    def __init__(self) -> None:
        self._hashes = array("q")

    def add(self, custom_id: str) -> None:
        self._hashes.append(hash(custom_id))

    def suspected(self) -> set[int]:
        """Return the hashes that are there more than once."""
        values, counts = np.unique(np.frombuffer(self._hashes, np.int64), return_counts=True)
        return set(values[counts > 1].tolist())


class _Cutting:
    """The chunks of one file."""

    def __init__(self, info: ObjectInfo, num_before: int, ids: _Ids) -> None:
        self.chunks: list[Chunk] = []
        self.ids = ids
        self._info, self._num_before = info, num_before
        self._start, self._first_line = 0, 1
        self._lines = self._tokens = self._crc = 0

    def cut(self, file: io.BufferedReader) -> None:
        end, last_line = 0, 0
        for number, text in numbered_lines(file, MAX_LINE_BYTES):
            line_end = file.tell()
            tokens = self._asked(number, text)
            is_full = self._lines == CHUNK_LINES or self._tokens + tokens > CHUNK_TOKENS
            if self._lines and (is_full or line_end - self._start > CHUNK_BYTES):
                self._close(end, last_line)
            self._lines += 1
            self._tokens += tokens
            self._crc = crc32c.extend(self._crc, b"" if isinstance(text, BadLine) else text)
            end, last_line = line_end, number
        if self._lines:
            self._close(end, last_line)

    def _close(self, end: int, last_line: int) -> None:
        number = self._num_before + len(self.chunks)
        chunk = Chunk(number, self._info, self._start, end, self._first_line, self._lines, self._crc)
        self.chunks.append(chunk)
        self._start, self._first_line = end, last_line + 1
        self._lines = self._tokens = self._crc = 0

    def _asked(self, number: int, text: bytes | BadLine) -> int:
        """Return the tokens that a line may ask for, and note its custom_id."""
        line = _parsed(number, text)
        custom_id = line.refusal.get("custom_id") if line.request is None else line.request.custom_id
        if custom_id is not None:
            self.ids.add(custom_id)
        return 1 if line.request is None else _tokens_of(line.request.body)


def _tokens_of(body: Mapping[str, Any]) -> int:
    limit = next((body[name] for name in LIMITS if isinstance(body.get(name), int)), UNSTATED_TOKENS)
    choices = body["n"] if isinstance(body.get("n"), int) else 1
    return max(limit, 1) * max(choices, 1)


def _parsed(number: int, text: bytes | BadLine) -> ChunkLine:
    try:
        return ChunkLine(number, parse_line(text, (*URLS, *AUDIO_URLS)))
    except BadLine as error:
        refusal = {"code": error.code, "message": error.message, "param": error.param, "line": number}
        answer = {"id": f"batch_req_{number}", "custom_id": _custom_id(text), "response": None, "error": refusal}
        return ChunkLine(number, None, answer)


def _custom_id(text: bytes | BadLine) -> str | None:
    """Return the custom_id of a line that is no request, if it has one."""
    if isinstance(text, BadLine):
        return None
    try:
        value = from_json(text, allow_inf_nan=False, cache_strings=False)
    except ValueError:
        return None
    custom_id = value.get("custom_id") if isinstance(value, dict) else None
    return custom_id if isinstance(custom_id, str) and custom_id else None


def _refuse_doubles(ids: _Ids, source: LocalSource | GcsSource, uri: str, files: list[ObjectInfo]) -> None:
    """Read the files again if two custom_ids may be equal.

    Raises:
        BatchFileError: two are.
    """
    if not (suspected := ids.suspected()):
        return
    seen: dict[str, str] = {}
    for info in files:
        with _opened(source, info, 0, info.size_bytes) as file:
            for number, text in numbered_lines(file, MAX_LINE_BYTES):
                line = _parsed(number, text)
                custom_id = line.refusal.get("custom_id") if line.request is None else line.request.custom_id
                if custom_id is None or hash(custom_id) not in suspected:
                    continue
                place = f"{info.name}, line {number}"
                if (first := seen.setdefault(custom_id, place)) != place:
                    reason = f"custom_id {custom_id!r} is at {first} too; answers could not be told apart."
                    raise BatchFileError(f"{uri}/{info.name}", number, f"{reason} Rename one.")


def _opened(source: LocalSource | GcsSource, info: ObjectInfo, start: int, end: int) -> "closing[io.BufferedReader]":
    return closing(io.BufferedReader(_PinnedReader(source, info, start, end), BUFFER_BYTES))


class _PinnedReader(io.RawIOBase):
    """Bytes of one version of a file, from start to end, with their checksum."""

    def __init__(self, source: LocalSource | GcsSource, info: ObjectInfo, start: int, end: int) -> None:
        super().__init__()
        self.crc = 0
        self._left = end - start
        self._ranges = source.open_ranges()
        ranges: RangeSource | FolderRanges = self._ranges.__enter__()
        self._range = ranges.open_range(info, start, end - start, RetryBudget(TransferLimits()))
        self._reader = self._range.__enter__()
        self._done = 0

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def tell(self) -> int:
        return self._done

    @override
    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        part = buffer[: min(len(buffer), self._left)]
        if not len(part):
            return 0
        self._reader.readinto(part)
        self.crc = crc32c.extend(self.crc, bytes(part))
        self._left -= len(part)
        self._done += len(part)
        return len(part)

    @override
    def close(self) -> None:
        if not self.closed:
            self._range.__exit__(None, None, None)
            self._ranges.__exit__(None, None, None)
        super().close()
