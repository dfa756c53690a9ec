"""Uploaded files and the results of batches, seen with the API key that made them.

OWNER/files/ID/record.json    names the content, or says that the file was deleted, so that no result comes again
OWNER/files/ID/content-…      each write has one of its own, and the record is written after it
"""

import json
import re
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

from service.api.batch.names import FILE_ID, FILE_PREFIX, RECORD, is_forgotten, new_id
from service.errors import FilesFull, InvalidParameter, UnknownObject
from service.storage.ages import CLOCK_JUMP_S, expiry_time
from service.storage.store import ObjectStore

CONTENT = "content"
DELETED = "deleted"
RESULTS = "batch_output"  # the purpose of files that batches leave
# OpenAI's, for files with the purpose `batch`.
DEFAULT_EXPIRY_S = 30 * 24 * 3600


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file."""

    id: str
    bytes: int
    created_at: int  # Unix time in seconds
    expires_at: int
    filename: str
    purpose: str
    content: str = CONTENT  # the name of its object

    def document(self) -> dict[str, Any]:
        """Return the file as OpenAI has it."""
        stated = asdict(self)
        del stated["content"]
        return {"object": "file", **stated, "status": "processed", "status_details": None}


class Files:
    """All files of all owners."""

    def __init__(self, store: ObjectStore, *, max_bytes: int) -> None:
        """Use a store.

        Args:
            store: where the files lie.
            max_bytes: the limit for all files together.
        """
        self._store = store
        self._max_bytes = max_bytes

    def add(
        self,
        owner: str,
        content: BinaryIO,
        num_bytes: int,
        *,
        filename: str,
        purpose: str,
        expires_after_s: int | None = None,
        file_id: str = "",
    ) -> StoredFile:
        """Store a file; one with an id replaces an earlier one, unless that was deleted.

        Raises:
            FilesFull: there is no room; not for results of batches.
        """
        if not file_id:
            self.check_room(num_bytes)
        now = int(time.time())
        stored = StoredFile(
            id=file_id or new_id(FILE_PREFIX),
            bytes=num_bytes,
            created_at=now,
            expires_at=now + (expires_after_s or DEFAULT_EXPIRY_S),
            filename=filename,
            purpose=purpose,
            content=new_id(f"{CONTENT}-"),
        )
        self._store.write(content_name(owner, stored), content)
        record = json.dumps(asdict(stored)).encode()
        self._store.update(_record_name(owner, stored.id), lambda present: None if _is_deleted(present) else record)
        return stored

    def get(self, owner: str, file_id: str) -> StoredFile:
        """Return a file's record; raises UnknownObject if there is none, or its time is over."""
        text = self._store.read(_record_name(owner, file_id)) if FILE_ID.fullmatch(file_id) else None
        stored = _stored(text)
        if stored is None or stored.expires_at <= expiry_time():
            raise UnknownObject("file", file_id)
        return stored

    def open(self, owner: str, file_id: str) -> tuple[StoredFile, BinaryIO]:
        """Return a file and its content, open; raises UnknownObject."""
        stored = self.get(owner, file_id)
        if (content := self._store.open(content_name(owner, stored))) is None:
            raise UnknownObject("file", file_id)
        return stored, content

    def delete(self, owner: str, file_id: str) -> None:
        """Delete a file; a batch that has begun keeps its requests. Raises UnknownObject."""
        stored = self.get(owner, file_id)
        tombstone = json.dumps({"id": file_id, "expires_at": stored.expires_at, DELETED: True}).encode()
        self._store.update(_record_name(owner, file_id), lambda present: None if _is_deleted(present) else tombstone)
        self._store.delete(content_name(owner, stored))

    def page(
        self, owner: str, *, limit: int, is_ascending: bool, after: str | None, purpose: str | None
    ) -> tuple[list[StoredFile], bool]:
        """Return the next files in the order of their creation, and whether there are more."""
        names = self._store.list(f"{owner}/files")
        ids = {name.split("/")[2] for name in names if name.endswith(RECORD)}
        found: list[StoredFile] = []
        for file_id in ids_after(ids, after, FILE_ID, is_ascending=is_ascending):
            try:
                stored = self.get(owner, file_id)
            except UnknownObject:  # deleted just now, or over
                continue
            if purpose is None or stored.purpose == purpose:
                if len(found) == limit:
                    return found, True
                found.append(stored)
        return found, False

    def tidy(self, owner: str, results: Mapping[str, Collection[str]]) -> None:
        """Delete what is not needed: files whose time is over, contents that no record names, and unfinished results.

        Args:
            owner: whose files they are.
            results: the ids of the files of each batch that has ended.
        """
        names = list(self._store.list(f"{owner}/files"))
        for file_id in sorted({name.split("/")[2] for name in names}):
            record = _record_name(owner, file_id)
            text = self._store.read(record)
            stored, is_over = _stored(text), text is not None and _is_over(text)
            if stored is not None and stored.purpose == RESULTS and is_forgotten(stored.content):
                batch_id = stored.filename.rpartition("_")[0]  # of one that was killed before it had the file
                is_over |= batch_id in results and file_id not in results[batch_id]
            if is_over:
                self._store.delete(record)
            named = None if stored is None or is_over else content_name(owner, stored)
            for name in names:
                is_content = name.startswith(f"{owner}/files/{file_id}/{CONTENT}")
                if is_content and name != named and (is_over or is_forgotten(name)):
                    self._store.delete(name)

    def check_room(self, num_bytes: int) -> None:
        """Raise FilesFull unless there is room for `num_bytes` more."""
        taken = sum(self._store.list("").values())
        if taken + num_bytes > self._max_bytes:
            raise FilesFull(taken_bytes=taken, limit_bytes=self._max_bytes)


def content_name(owner: str, stored: StoredFile) -> str:
    """Return the name of a file's content."""
    return f"{owner}/files/{stored.id}/{stored.content}"


def ids_after(ids: Iterable[str], after: str | None, form: re.Pattern[str], *, is_ascending: bool) -> list[str]:
    """Return the ids that follow one, whether or not it is still there, in their order.

    Raises:
        InvalidParameter: it is no such id.
    """
    if after is not None and not form.fullmatch(after):
        raise InvalidParameter("Invalid 'after': there is no such object.", param="after")
    in_order = sorted(ids, reverse=not is_ascending)
    return [each for each in in_order if after is None or (each > after if is_ascending else each < after)]


def _stored(record: bytes | None) -> StoredFile | None:
    return None if record is None or _is_deleted(record) else StoredFile(**json.loads(record))


def _is_deleted(record: bytes | None) -> bool:
    return record is not None and DELETED in json.loads(record)


def _is_over(record: bytes) -> bool:
    return json.loads(record)["expires_at"] + CLOCK_JUMP_S <= expiry_time()


def _record_name(owner: str, file_id: str) -> str:
    return f"{owner}/files/{file_id}/{RECORD}"
