"""COMPLETE.json: the file that is written last, and without which a pulled folder counts for nothing.

It holds the listing that was pulled and, for each file, what the file system said when its bytes were known to be
right. A start compares those marks, which is cheap, and sums only the files whose marks differ.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from service.storage.files import atomic_write
from service.storage.objects import RECORD_NAME, ObjectInfo

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class FileMark:
    """What the file system says about a file; all three change when the file is replaced or written to."""

    size_bytes: int
    mtime_ns: int
    inode: int


@dataclass(frozen=True, slots=True)
class RecordedFile:
    """A file that was right when the record was written."""

    info: ObjectInfo
    crc32c: str  # of the file; differs from the object's where the object is stored with gzip
    mark: FileMark


def mark_of(path: Path) -> FileMark | None:
    """The marks of a regular file; None if there is none."""
    try:
        status = path.lstat()
    except OSError:
        return None
    is_regular = path.is_file() and not path.is_symlink()
    return FileMark(status.st_size, status.st_mtime_ns, status.st_ino) if is_regular else None


def write_record(folder: Path, uri: str, objects: Sequence[ObjectInfo], file_sums: Mapping[str, str]) -> None:
    """Make a folder visible whose files are all in place and on the disk.

    Args:
        folder: where the files lie.
        uri: where they came from, for whoever looks into the cache.
        objects: the listing.
        file_sums: each file's crc32c, by name.
    """
    content = {
        "format_version": FORMAT_VERSION,
        "uri": uri,
        "files": [
            {"info": asdict(info), "crc32c": file_sums[info.name], "mark": asdict(_present(folder / info.name))}
            for info in objects
        ],
    }
    atomic_write(folder / RECORD_NAME, json.dumps(content, indent=1).encode())


def read_record(folder: Path) -> tuple[RecordedFile, ...] | None:
    """The files of a complete folder; None if it is not complete, or its record is of another version or damaged."""
    try:
        content = json.loads((folder / RECORD_NAME).read_bytes())
        if content["format_version"] != FORMAT_VERSION:
            return None
        return tuple(
            RecordedFile(ObjectInfo(**file["info"]), file["crc32c"], FileMark(**file["mark"]))
            for file in content["files"]
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _present(path: Path) -> FileMark:
    mark = mark_of(path)
    assert mark is not None, f"{path} was put in place and is gone"
    return mark
