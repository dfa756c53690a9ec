"""The listing of a location: objects, each pinned to one version, with names that are safe as paths.

Any writer of the bucket chooses the names, which become paths here, so they are checked before anything is downloaded.
A bad name is refused rather than cleaned: two names must never become one file.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from service.errors import HostileName
from service.storage.files import PART_SUFFIX

RECORD_NAME = "COMPLETE.json"

# A temporary file's name is longer than its object's by the process id and a random part; file systems allow 255 bytes.
MAX_SEGMENT_BYTES = 200
MAX_NAME_BYTES = 1024  # Source: https://cloud.google.com/storage/docs/objects#naming


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One file of a checkpoint."""

    name: str  # relative to the location, folders divided by "/"
    size_bytes: int
    crc32c: str = ""  # base64 of the big-endian sum, as GCS gives it; empty where the source keeps none
    generation: int = 0  # the version: GCS's generation, or a local file's time of change in ns
    content_encoding: str = ""  # "gzip": the stored bytes are compressed and the file's are not

    @property
    def is_gzipped(self) -> bool:
        """Whether the stored bytes have to be unpacked."""
        return self.content_encoding.strip().lower() == "gzip"


def check_name(uri: str, name: str) -> None:
    """Check that a name stays inside its folder, and that all file systems read it alike.

    Raises:
        HostileName: it does not; the message says why.
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
