"""An `ObjectStore` below a prefix of a bucket, which several machines may share.

Reading needs storage.objects.list and .get; everything else needs .create and .delete. Only `list` sends a LIST.
"""

import json
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from service.errors import CheckpointNotFound, CorruptObject, ObjectChanged, TransferFailed
from service.storage import crc32c
from service.storage.gcs.read import GcsSource
from service.storage.location import GcsLocation
from service.storage.objects import ObjectInfo
from service.storage.retry import RetryBudget, TransferLimits

if TYPE_CHECKING:
    from service.storage.gcs.upload import GcsUploader

COPY_BYTES = 8 * 1024 * 1024
CLAIMS = "claims"
CLAIM_S = 120.0
COMPOSED = "composed"  # the folder of what becomes parts of a concatenation
MAX_COMPOSED = 32  # objects of one request. Source: https://cloud.google.com/storage/docs/composite-objects
MAX_UPDATES = 20  # of one object by other processes while this one updates it


class BucketStore:
    """The objects below one prefix."""

    def __init__(
        self,
        location: GcsLocation,
        *,
        emulator_host: str | None,
        claim_s: float = CLAIM_S,
        limits: TransferLimits | None = None,
    ) -> None:
        """Name a place; nothing is read yet.

        Args:
            location: the prefix.
            emulator_host: STORAGE_EMULATOR_HOST.
            claim_s: seconds until a claim that is not renewed expires.
            limits: limits on each reading and listing; if omitted, those of requests, which wait for no outage.
        """
        self.uri = location.uri
        self._location = location
        self._emulator_host = emulator_host
        self._claim_s = claim_s
        self._limits = limits or TransferLimits(outage_s=0.0)
        self._opened = ExitStack()

    def close(self) -> None:
        self._opened.close()

    def list(self, folder: str) -> dict[str, int]:
        try:
            infos = self._source.list(f"{folder}/" if folder else "")
        except CheckpointNotFound:  # nothing below the prefix
            return {}
        return {info.name: info.size_bytes for info in infos}

    def read(self, name: str) -> bytes | None:
        live = self._source.read_live(name)
        return None if live is None else live[1]

    def open(self, name: str) -> BinaryIO | None:
        """Download an object to a temporary file, or return None if it does not exist."""
        if (info := self._source.find(name)) is None:
            return None
        with ExitStack() as stack, _none_if_gone():
            copy = stack.enter_context(tempfile.TemporaryFile())
            _download(self._source, info, copy)
            stack.pop_all()
            return copy
        return None

    def write(self, name: str, content: bytes | Path | BinaryIO, *, replaces: bool = True) -> bool:
        """Write an object; of several concurrent writers that replace it, the last one wins."""
        present = None  # most names are new
        while not self._uploader.upload(name, content, replaces=present):
            if not replaces:
                return False
            present = self._source.find(name)
            is_same = isinstance(content, bytes) and present is not None and _sum(content) == present.crc32c
            if is_same:
                break
        return True

    def update(self, name: str, change: Callable[[bytes | None], bytes | None]) -> bytes | None:
        """Replace exactly the generation that `change` was given.

        An upload whose answer was lost is sent again by Google's client, and then finds itself to be the other writer:
        `change` is given its own object, and leaves it.
        """
        for _ in range(MAX_UPDATES):
            info, present = self._source.read_live(name) or (None, None)
            if (content := change(present)) is None:
                return present
            if self._uploader.upload(name, content, replaces=info):
                return content
        raise TransferFailed(self.uri, name, "other processes write it all the time.")

    def copy(self, name: str, target: str) -> bool:
        return self._uploader.copy(name, target)

    def delete(self, name: str) -> None:
        self._uploader.delete(name)

    def delete_folder(self, folder: str) -> None:
        for name in self.list(folder):
            self.delete(name)

    def sweep(self) -> None:
        """Do nothing: an interrupted upload leaves nothing."""

    def concatenate(self, names: Sequence[str], target: str) -> bool:
        """Compose objects in the bucket, in as many rounds as needed; no byte comes here."""
        left, made = list(names), list[str]()
        try:
            while len(left) > MAX_COMPOSED:
                groups = [left[start : start + MAX_COMPOSED] for start in range(0, len(left), MAX_COMPOSED)]
                left = [f"{COMPOSED}/{uuid.uuid4().hex}" for _ in groups]
                for group, name in zip(groups, left, strict=True):
                    made.append(name)
                    self._uploader.compose(group, name)
            return self._uploader.compose(left, target)
        finally:
            for name in made:
                self.delete(name)

    def claim(self, name: str, owner: str | None = None) -> "BucketClaim | None":
        """Claim a name for an owner unless another holds an unexpired claim to it."""
        claim = BucketClaim(self, f"{CLAIMS}/{name}", owner or uuid.uuid4().hex, self._claim_s)
        return claim if claim.renew() else None

    def write_claim(self, name: str, owner: str, seconds: float) -> bool:
        """Write a claim if it is free, expired or this owner's; return whether this owner holds it now."""
        present = self._source.read_live(name)
        if present is not None and not self._may_take(name, *present, owner):
            return False
        content = json.dumps({"owner": owner, "seconds": seconds}).encode()
        if self._uploader.upload(name, content, replaces=None if present is None else present[0]):
            return True
        # Another was first, or an upload whose answer was lost was sent again.
        return self._is_owner(name, owner)

    def _may_take(self, name: str, info: ObjectInfo, content: bytes, owner: str) -> bool:
        claim = json.loads(content)
        if claim["owner"] == owner:
            return True
        aged = self._source.age_s(name)
        return aged is not None and aged[0].generation == info.generation and aged[1] > claim["seconds"]

    def _is_owner(self, name: str, owner: str) -> bool:
        present = self.read(name)
        return present is not None and json.loads(present)["owner"] == owner

    def end_claim(self, name: str, owner: str) -> None:
        if self._is_owner(name, owner):
            self.delete(name)

    @cached_property
    def _source(self) -> GcsSource:
        source = GcsSource(self._location, emulator_host=self._emulator_host, limits=self._limits)
        return self._opened.enter_context(source)

    @cached_property
    def _uploader(self) -> "GcsUploader":
        from service.storage.gcs.upload import GcsUploader  # imports Google's client, which only writers need

        return self._opened.enter_context(GcsUploader(self._location, emulator_host=self._emulator_host))


class BucketClaim:
    """A `Claim` stored as an object that names its owner."""

    def __init__(self, store: BucketStore, name: str, owner: str, seconds: float) -> None:
        self._store, self._name, self._owner, self._seconds = store, name, owner, seconds

    def renew(self) -> bool:
        """Extend the claim; return whether this owner still holds it."""
        return self._store.write_claim(self._name, self._owner, self._seconds)

    def release(self) -> None:
        """Delete the object unless another process has claimed it since."""
        self._store.end_claim(self._name, self._owner)


def _sum(content: bytes) -> str:
    return crc32c.to_text(crc32c.extend(0, content))


def _download(source: GcsSource, info: ObjectInfo, copy: BinaryIO) -> None:
    buffer = memoryview(bytearray(min(COPY_BYTES, info.size_bytes)))
    left, crc = info.size_bytes, 0
    with source.open_range(info, 0, info.size_bytes, RetryBudget(source.limits)) as object_range:
        while left:
            part = buffer[: min(len(buffer), left)]
            object_range.readinto(part)
            crc = crc32c.extend(crc, bytes(part))
            copy.write(part)
            left -= len(part)
    if (actual := crc32c.to_text(crc)) != info.crc32c:
        raise CorruptObject(source.uri, info.name, expected=info.crc32c, actual=actual)
    copy.seek(0)


@contextmanager
def _none_if_gone() -> Iterator[None]:
    """Leave the block if an object was deleted or replaced since it was listed."""
    try:
        yield
    except ObjectChanged:
        return
