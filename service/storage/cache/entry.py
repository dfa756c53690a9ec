"""Where one checkpoint lies in a cache: its folder, its locks, and what of it changed on the disk.

A checkpoint `NAME` is the folder `NAME/` with two locks beside it: `NAME.lock`, held alone while it is pulled or
checked, and `NAME.use`, held together by all who serve from it; the time of `NAME.use` is when it was last opened.
"""

import hashlib
import json
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from service.storage.cache.record import RecordedFile, mark_of
from service.storage.cache.verification import recorded
from service.storage.files import FileLock, try_lock
from service.storage.objects import ObjectInfo

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Place:
    """A checkpoint's place, whether it is there yet or not."""

    root: Path
    name: str

    @classmethod
    def of(cls, root: Path, uri: str, objects: Sequence[ObjectInfo]) -> "Place":
        """Return the place of one version of some objects: another version of any of them has another."""
        versions = sorted([info.name, info.generation, info.size_bytes, info.crc32c] for info in objects)
        digest = hashlib.sha256(json.dumps([uri, versions]).encode()).hexdigest()
        readable = re.sub(r"[^A-Za-z0-9._-]+", "-", uri.rsplit("/", 1)[-1]).strip(".-")[:48]
        return cls(root, f"{readable or 'checkpoint'}-{digest[:20]}")

    @property
    def folder(self) -> Path:
        """The checkpoint's files."""
        return self.root / self.name

    @property
    def pull_lock(self) -> Path:
        """Held alone by the process that pulls or checks."""
        return self.root / f"{self.name}.lock"

    @property
    def use_lock(self) -> Path:
        """Held together by the processes that serve from it."""
        return self.root / f"{self.name}.use"

    @property
    def quarantine(self) -> Path:
        """Files whose bytes had changed on the disk, kept for a look at them."""
        return self.root / f"{self.name}.corrupt"

    def hold(self) -> FileLock:
        """Hold the files along with all who serve from them; only for who holds the pull lock."""
        # Nobody holds this lock alone without holding the pull lock too, which is ours.
        lock = try_lock(self.use_lock, is_shared=True)
        assert lock is not None
        os.utime(self.use_lock)
        return lock

    def has_by_its_marks(self, objects: Sequence[ObjectInfo]) -> bool:
        """Whether all objects are recorded here and no file looks as if it had changed since."""
        files = recorded(self.folder, objects)
        return files is not None and all(mark_of(self.folder / file.info.name) == file.mark for file in files)

    def set_aside(self, file: RecordedFile) -> None:
        """Move a file whose bytes are not those that were pulled into quarantine."""
        logger.warning(
            "a cached file changed on the disk; it is set aside and pulled again",
            extra={"object": file.info.name, "expected": file.crc32c, "quarantine": str(self.quarantine)},
        )
        path, aside = self.folder / file.info.name, self.quarantine / file.info.name
        if mark_of(path) is not None:
            aside.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.replace(aside)
