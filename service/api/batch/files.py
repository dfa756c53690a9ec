"""Uploaded files and the results of batches: a record and the content, seen with the API key that made them."""

import json
import time
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

from service.api.batch.names import FILE_ID, FILE_PREFIX, RECORD, new_id
from service.errors import FilesFull, InvalidParameter, UnknownObject
from service.storage.store import ObjectStore

CONTENT = "content"
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

    def document(self) -> dict[str, Any]:
        """Return the file as OpenAI has it."""
        return {"object": "file", **asdict(self), "status": "processed", "status_details": None}


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
        """Store a file.

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
        )
        self._store.write(content_name(owner, stored.id), content)
        self._store.write(_record_name(owner, stored.id), json.dumps(asdict(stored)).encode())
        return stored

    def get(self, owner: str, file_id: str) -> StoredFile:
        """Return a file's record; raises UnknownObject if there is none, or its time is over."""
        text = self._store.read(_record_name(owner, file_id)) if FILE_ID.fullmatch(file_id) else None
        stored = None if text is None else StoredFile(**json.loads(text))
        if stored is None or stored.expires_at <= time.time():
            raise UnknownObject("file", file_id)
        return stored

    def open(self, owner: str, file_id: str) -> tuple[StoredFile, BinaryIO]:
        """Return a file and its content, open; raises UnknownObject."""
        stored = self.get(owner, file_id)
        if (content := self._store.open(content_name(owner, file_id))) is None:
            raise UnknownObject("file", file_id)
        return stored, content

    def delete(self, owner: str, file_id: str) -> None:
        """Delete a file; a batch that has begun keeps its requests. Raises UnknownObject."""
        self.get(owner, file_id)
        self._store.delete(_record_name(owner, file_id))
        self._store.delete(content_name(owner, file_id))

    def page(
        self, owner: str, *, limit: int, is_ascending: bool, after: str | None, purpose: str | None
    ) -> tuple[list[StoredFile], bool]:
        """Return the next files in the order of their creation, and whether there are more."""
        names = self._store.list(f"{owner}/files")
        ids = sorted({name.split("/")[2] for name in names if name.endswith(RECORD)}, reverse=not is_ascending)
        found: list[StoredFile] = []
        for file_id in ids_after(ids, after):
            try:
                stored = self.get(owner, file_id)
            except UnknownObject:  # deleted just now, or over
                continue
            if purpose is None or stored.purpose == purpose:
                if len(found) == limit:
                    return found, True
                found.append(stored)
        return found, False

    def delete_expired(self, owner: str) -> None:
        """Delete the files whose time is over."""
        for name in self._store.list(f"{owner}/files"):
            if name.endswith(RECORD) and (text := self._store.read(name)) is not None:
                stored = StoredFile(**json.loads(text))
                if stored.expires_at <= time.time():
                    self._store.delete(name)
                    self._store.delete(content_name(owner, stored.id))

    def check_room(self, num_bytes: int) -> None:
        """Raise FilesFull unless there is room for so many bytes more."""
        taken = sum(self._store.list("").values())
        if taken + num_bytes > self._max_bytes:
            raise FilesFull(taken_bytes=taken, limit_bytes=self._max_bytes)


def content_name(owner: str, file_id: str) -> str:
    """Return the name of a file's content."""
    return f"{owner}/files/{file_id}/{CONTENT}"


def ids_after(ids: list[str], after: str | None) -> list[str]:
    """Return the ids that follow one in a list.

    Raises:
        InvalidParameter: it is not in the list.
    """
    if after is None:
        return ids
    if after not in ids:
        raise InvalidParameter("Invalid 'after': there is no such object.", param="after")
    return ids[ids.index(after) + 1 :]


def _record_name(owner: str, file_id: str) -> str:
    return f"{owner}/files/{file_id}/{RECORD}"
