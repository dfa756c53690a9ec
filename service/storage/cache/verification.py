"""Whether the files of a folder are what the record or the listing says: summed, in parallel."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from service.storage import crc32c
from service.storage import gzip as content
from service.storage.cache.record import RecordedFile, mark_of, read_record
from service.storage.objects import ObjectInfo


def recorded(folder: Path, objects: Sequence[ObjectInfo]) -> tuple[RecordedFile, ...] | None:
    """What a folder's record says about these objects; None if it is not complete, or of other versions."""
    # A record is believed about its marks only; what belongs into the folder is what the bucket lists.
    files = read_record(folder)
    return files if files is not None and {file.info for file in files} == set(objects) else None


def wrong_files(folder: Path, files: Sequence[RecordedFile]) -> list[RecordedFile]:
    """The files whose bytes are not those of the record, all of them summed."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        are_right = list(pool.map(lambda file: _has_sum(folder / file.info.name, file.crc32c), files))
    return [file for file, is_right in zip(files, are_right, strict=True) if not is_right]


def sums_of_whole_files(folder: Path, objects: Sequence[ObjectInfo]) -> dict[str, str]:
    """The sums of those objects that lie in a folder whole and right."""
    # What a killed pull left under its final name was right when it got it, but a crash of the machine may have cost
    # the disk its bytes; so it is summed. A file that was unpacked has no sum to compare with and comes again.
    comparable = [info for info in objects if not content.is_packed(info)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        are_whole = list(pool.map(lambda info: _has_sum(folder / info.name, info.crc32c), comparable))
    return {info.name: info.crc32c for info, is_whole in zip(comparable, are_whole, strict=True) if is_whole}


def _has_sum(path: Path, expected: str) -> bool:
    try:
        return mark_of(path) is not None and crc32c.to_text(crc32c.of_file(path)) == expected
    except OSError:
        return False
