"""Files of one location that are pinned to their versions together."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass

from service.storage.location import Location
from service.storage.objects import ObjectInfo
from service.storage.source import Source

OpenSource = Callable[[Location], Source]


@dataclass(frozen=True)
class FileSet:
    """Files of one source that are cached together."""

    source: Source
    objects: tuple[ObjectInfo, ...]
    folder: str = ""  # of the source, where the files of interest lie; empty or with a slash at its end

    @property
    def version(self) -> str:
        """A digest of the names and versions of the files."""
        listed = sorted([info.name, info.generation, info.size_bytes, info.crc32c] for info in self.objects)
        return hashlib.sha256(json.dumps(listed).encode()).hexdigest()
