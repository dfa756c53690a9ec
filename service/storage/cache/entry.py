"""One checkpoint in a cache: its folder, its locks, the record of its files, and its eviction.

A checkpoint `NAME` is the folder `NAME/` with two locks next to it: `NAME.lock`, held exclusively while it is pulled or
checked, and `NAME.use`, shared by all processes that serve from it; its mtime is the time of the last use.

The record, COMPLETE.json, is written last; a folder without it is incomplete. It holds the pulled listing and, for each
file, its `lstat` at the time its bytes were verified. A start compares `lstat`, which is cheap, and checksums only the
files for which it differs.
"""

import hashlib
import json
import logging
import os
import re
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from service.storage import crc32c
from service.storage.files import FileLock, atomic_write, free_bytes, sync, try_lock
from service.storage.objects import PART_SUFFIX, RECORD_NAME, ObjectInfo

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
TRASH_PREFIX = ".trash-"


@dataclass(frozen=True, slots=True)
class FileStat:
    """The fields of `lstat` that change when a file is replaced or written to."""

    size_bytes: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> "FileStat | None":
        """Return the stat of a regular file, or None if there is no such file."""
        try:
            status = path.lstat()
        except OSError:
            return None
        is_regular = path.is_file() and not path.is_symlink()
        return cls(status.st_size, status.st_mtime_ns, status.st_ino) if is_regular else None


@dataclass(frozen=True, slots=True)
class RecordedFile:
    """A file whose bytes were verified when the record was written."""

    info: ObjectInfo
    crc32c: str  # of the file; differs from the object's if the object is stored with gzip
    stat: FileStat


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """The paths of one checkpoint in a cache, whether or not it is cached."""

    root: Path
    name: str

    @classmethod
    def of(cls, root: Path, uri: str, objects: Sequence[ObjectInfo]) -> "CacheEntry":
        """Return the entry for one version of a set of objects; a new version of any object has a new entry."""
        versions = sorted([info.name, info.generation, info.size_bytes, info.crc32c] for info in objects)
        digest = hashlib.sha256(json.dumps([uri, versions]).encode()).hexdigest()
        readable = re.sub(r"[^A-Za-z0-9._-]+", "-", uri.rsplit("/", 1)[-1]).strip(".-")[:48]
        return cls(root, f"{readable or 'checkpoint'}-{digest[:20]}")

    @property
    def folder(self) -> Path:
        return self.root / self.name

    @property
    def pull_lock(self) -> Path:
        """Held exclusively by the process that pulls or checks."""
        return self.root / f"{self.name}.lock"

    @property
    def use_lock(self) -> Path:
        """Shared by the processes that serve from the folder."""
        return self.root / f"{self.name}.use"

    @property
    def quarantine(self) -> Path:
        """Files whose bytes changed on disk, kept for inspection."""
        return self.root / f"{self.name}.corrupt"

    def hold(self) -> FileLock:
        """Protect the entry from eviction; the caller holds the pull lock."""
        # Cannot fail: exclusive holders of the use lock also hold the pull lock, which is the caller's.
        lock = try_lock(self.use_lock, is_shared=True)
        assert lock is not None
        os.utime(self.use_lock)
        return lock

    def try_hold_unchanged(self, objects: Sequence[ObjectInfo]) -> FileLock | None:
        """Hold the entry if it is complete and no file's `lstat` has changed; needs no pull lock."""
        if not self._is_unchanged(objects):
            return None
        try:
            lock = try_lock(self.use_lock, is_shared=True)
        except OSError:
            return None
        if lock is not None and not self._is_unchanged(objects):  # evicted before it was locked
            lock.release()
            return None
        return lock

    def has_valid_files(self, objects: Sequence[ObjectInfo]) -> bool:
        """Checksum all files; return whether the entry is complete and every checksum matches."""
        files = self._recorded(objects)
        return files is not None and not self._corrupt(files)

    def repair(self, uri: str, objects: Sequence[ObjectInfo], *, verify_fully: bool) -> bool:
        """Move files whose bytes changed into quarantine; return whether the entry is complete and intact.

        Args:
            uri: the checkpoint's address, for the record.
            objects: the listing.
            verify_fully: checksum every file instead of only those whose `lstat` changed.
        """
        files = self._recorded(objects)
        if files is None:
            return False
        suspects = [file for file in files if verify_fully or FileStat.of(self.folder / file.info.name) != file.stat]
        corrupt = self._corrupt(suspects)
        if corrupt:
            (self.folder / RECORD_NAME).unlink()
            for file in corrupt:
                self._quarantine(file)
        elif suspects:
            # Only `lstat` changed, as after copying the cache: record it so that the next start skips the checksums.
            self._write_record(uri, objects, {file.info.name: file.crc32c for file in files})
        return not corrupt

    def sums_of_whole_files(self, objects: Sequence[ObjectInfo]) -> dict[str, str]:
        """Checksum the files of an incomplete entry; return the crc32c of the valid ones by name."""
        # A killed pull has committed valid files, but a machine crash may have lost their bytes. The listing has no
        # checksum of an unpacked file, so those are fetched again.
        comparable = [info for info in objects if not info.is_gzipped]
        are_whole = self._match([(info, info.crc32c) for info in comparable])
        return {info.name: info.crc32c for info, is_whole in zip(comparable, are_whole, strict=True) if is_whole}

    def remove_parts(self) -> None:
        """Delete the temporary files of a killed pull; the caller holds the pull lock."""
        for part in self.folder.rglob(f".*{PART_SUFFIX}"):
            part.unlink()

    def complete(self, uri: str, objects: Sequence[ObjectInfo], file_sums: Mapping[str, str]) -> None:
        """Make the folder visible after all of its files were committed.

        Args:
            uri: the checkpoint's address, for people who inspect the cache.
            objects: the listing.
            file_sums: crc32c of each file, by name.

        Raises:
            OSError: the disk failed or is full.
        """
        for folder in [self.folder, *(path for path in self.folder.rglob("*") if path.is_dir())]:
            sync(folder)
        self._write_record(uri, objects, file_sums)
        sync(self.root)

    def _is_unchanged(self, objects: Sequence[ObjectInfo]) -> bool:
        files = self._recorded(objects)
        return files is not None and all(FileStat.of(self.folder / file.info.name) == file.stat for file in files)

    def _recorded(self, objects: Sequence[ObjectInfo]) -> tuple[RecordedFile, ...] | None:
        """Return the files of a complete entry; None if its record is absent, damaged or of another version."""
        try:
            record = json.loads((self.folder / RECORD_NAME).read_bytes())
            if record["format_version"] != FORMAT_VERSION:
                return None
            files = tuple(
                RecordedFile(ObjectInfo(**file["info"]), file["crc32c"], FileStat(**file["mark"]))
                for file in record["files"]
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None
        # The listing, not the record, decides which files belong to the entry.
        return files if {file.info for file in files} == set(objects) else None

    def _write_record(self, uri: str, objects: Sequence[ObjectInfo], file_sums: Mapping[str, str]) -> None:
        files = []
        for info in objects:
            stat = FileStat.of(self.folder / info.name)
            assert stat is not None, f"{self.folder / info.name} was committed and is gone"
            files.append({"info": asdict(info), "crc32c": file_sums[info.name], "mark": asdict(stat)})
        record = {"format_version": FORMAT_VERSION, "uri": uri, "files": files}
        atomic_write(self.folder / RECORD_NAME, json.dumps(record, indent=1).encode())

    def _quarantine(self, file: RecordedFile) -> None:
        logger.warning(
            "a cached file changed on disk; it was quarantined and is pulled again",
            extra={"object": file.info.name, "expected": file.crc32c, "quarantine": str(self.quarantine)},
        )
        path, quarantined = self.folder / file.info.name, self.quarantine / file.info.name
        if FileStat.of(path) is not None:
            quarantined.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.replace(quarantined)

    def _corrupt(self, files: Sequence[RecordedFile]) -> list[RecordedFile]:
        are_valid = self._match([(file.info, file.crc32c) for file in files])
        return [file for file, is_valid in zip(files, are_valid, strict=True) if not is_valid]

    def _match(self, expected: Sequence[tuple[ObjectInfo, str]]) -> list[bool]:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return list(pool.map(lambda pair: _has_crc32c(self.folder / pair[0].name, pair[1]), expected))


def make_room(entry: CacheEntry, *, max_checkpoints: int, needed_bytes: int) -> int:
    """Evict the least recently used unlocked entries until `entry` fits by count and size; return the free bytes."""
    for trash in entry.root.glob(f"{TRASH_PREFIX}*"):
        shutil.rmtree(trash, ignore_errors=True)
    others = _others_by_last_use(entry)
    surplus = len(others) + 1 - max_checkpoints
    for other in others:
        if surplus <= 0 and free_bytes(entry.root) >= needed_bytes:
            break
        if _evict(other):
            surplus -= 1
    if free_bytes(entry.root) < needed_bytes:
        shutil.rmtree(entry.quarantine, ignore_errors=True)
    return free_bytes(entry.root)


def _others_by_last_use(entry: CacheEntry) -> list[CacheEntry]:
    return [other for _, other in sorted(_others_with_last_use(entry), key=lambda pair: pair[0])]


def _others_with_last_use(entry: CacheEntry) -> Iterator[tuple[float, CacheEntry]]:
    for folder in entry.root.iterdir():
        other = CacheEntry(entry.root, folder.name)
        if folder.name != entry.name and folder.is_dir():
            # A folder without locks does not belong to the cache, or another process is deleting it.
            with suppress(FileNotFoundError):
                yield other.use_lock.stat().st_mtime, other


def _evict(entry: CacheEntry) -> bool:
    with ExitStack() as locks:
        for path in (entry.pull_lock, entry.use_lock):
            lock = try_lock(path)
            if lock is None:
                return False
            locks.enter_context(lock)
        # Rename first: a kill during the deletion must not leave half a checkpoint under its name.
        trash = entry.root / f"{TRASH_PREFIX}{uuid.uuid4().hex[:8]}"
        with suppress(FileNotFoundError):
            entry.folder.replace(trash)
        shutil.rmtree(trash, ignore_errors=True)
        shutil.rmtree(entry.quarantine, ignore_errors=True)
        entry.use_lock.unlink(missing_ok=True)
        entry.pull_lock.unlink(missing_ok=True)
    logger.info("evicted a checkpoint from the cache", extra={"checkpoint": entry.name})
    return True


def _has_crc32c(path: Path, expected: str) -> bool:
    try:
        return FileStat.of(path) is not None and crc32c.to_text(crc32c.of_file(path)) == expected
    except OSError:
        return False
