"""The batches of all owners: created, listed and cancelled here, run by `worker`.

OWNER/batches/ID/record.json      its state
OWNER/batches/ID/input.jsonl      its requests, a copy that outlives the file
OWNER/batches/ID/answers/…        answers so far
OWNER/batches/ID/cancel           the wish to end it
queue/ID                          its owner, until it has ended
"""

import asyncio
import time
from typing import Any

from service.api.batch.files import Files, content_name, ids_after
from service.api.batch.names import BATCH_ID, BATCH_PREFIX, FILE_ID, RECORD, new_id
from service.api.batch.records import Batch
from service.errors import InvalidParameter, UnknownObject
from service.storage.store import ObjectStore

QUEUE = "queue"
MAX_UPLOADS = 4  # at once, each in a temporary file
FORGET_AFTER_S = 60 * 24 * 3600


class Batches:
    """All batches; the methods that use the store block."""

    def __init__(self, store: ObjectStore, files: Files) -> None:
        self.store = store
        self.files = files
        self.uploads = asyncio.Semaphore(MAX_UPLOADS)
        self.has_news = asyncio.Event()  # set when a batch was created or has ended
        self.live: dict[str, Batch] = {}  # those that this process runs
        self.cancelled: dict[str, asyncio.Event] = {}  # set when one of those is to end

    def create(
        self,
        owner: str,
        *,
        input_file_id: str,
        endpoint: str,
        metadata: dict[str, str] | None,
        output_expires_after_s: int | None,
    ) -> Batch:
        """Store a new batch; the worker takes it from there.

        Raises:
            InvalidParameter: there is no such file.
            FilesFull: there is no room for a copy of it.
        """
        batch = Batch(
            id=new_id(BATCH_PREFIX),
            owner=owner,
            endpoint=endpoint,
            input_file_id=input_file_id,
            created_at=int(time.time()),
            metadata=metadata,
            output_expires_after_s=output_expires_after_s,
        )
        if not self._take_input(batch):
            message = f"Invalid 'input_file_id': no file found with id '{input_file_id[:64]}'. Upload it first."
            raise InvalidParameter(message, param="input_file_id")
        self.store.write(f"{QUEUE}/{batch.id}", owner.encode())
        self.save(batch)
        return batch

    def get(self, owner: str, batch_id: str) -> Batch:
        """Return a batch; raises UnknownObject."""
        live = self.live.get(batch_id)
        if live is not None and live.owner == owner:
            return live
        batch = self.stored(owner, batch_id) if BATCH_ID.fullmatch(batch_id) else None
        if batch is None:
            raise UnknownObject("batch", batch_id)
        return batch

    def stored(self, owner: str, batch_id: str) -> Batch | None:
        """Return a batch's record, as of its last change, and whether it is to end; None if there is none."""
        folder = folder_of(owner, batch_id)
        text = self.store.read(f"{folder}/{RECORD}")
        if text is None:
            return None
        batch = Batch.from_json(text)
        if batch.status in ("validating", "in_progress") and (moment := self.store.read(f"{folder}/cancel")):
            batch.status = "cancelling"
            batch.moments["cancelling"] = int(moment)
        return batch

    def page(self, owner: str, *, limit: int, after: str | None) -> tuple[list[Batch], bool]:
        """Return the next batches, the newest first, and whether there are more."""
        names = self.store.list(f"{owner}/batches")
        ids = sorted({name.split("/")[2] for name in names if name.endswith(RECORD)}, reverse=True)
        following = ids_after(ids, after)
        return [self.get(owner, batch_id) for batch_id in following[:limit]], len(following) > limit

    def cancel(self, owner: str, batch_id: str) -> Batch:
        """Ask whichever process runs a batch to end it.

        Raises:
            UnknownObject: there is none.
            InvalidParameter: it has ended.
        """
        batch = self.get(owner, batch_id)
        if batch.shown_status == "cancelling":
            return batch
        if not batch.is_open:
            message = f"Cannot cancel a batch with status '{batch.status}'."
            raise InvalidParameter(message, param="batch_id")
        if batch.status != "finalizing":
            self.store.write(f"{folder_of(owner, batch_id)}/cancel", str(int(time.time())).encode())
        stored = self.stored(owner, batch_id)
        return stored if stored is not None else batch

    def begin(self, batch: Batch) -> None:
        """Show a batch that this process runs as it is now; called on the event loop."""
        if self.cancelled[batch.id].is_set():  # while its record was read, maybe too late for the record to say so
            batch.moments.setdefault("cancelling", int(time.time()))
        self.live[batch.id] = batch

    def interrupt(self, batch: Batch) -> None:
        """End a batch that was cancelled at once if this process runs it; called on the event loop."""
        if (cancelled := self.cancelled.get(batch.id)) is None or "cancelling" not in batch.moments:
            return
        cancelled.set()
        if (live := self.live.get(batch.id)) is not None:
            live.moments.setdefault("cancelling", batch.moments["cancelling"])

    def save(self, batch: Batch) -> None:
        """Write a batch's record."""
        self.store.write(f"{folder_of(batch.owner, batch.id)}/{RECORD}", batch.to_json())

    def end(self, batch: Batch) -> None:
        """Keep nothing of a batch that has ended but its record."""
        folder = folder_of(batch.owner, batch.id)
        for name in self.store.list(folder):
            if name != f"{folder}/{RECORD}":
                self.store.delete(name)
        self.store.delete(f"{QUEUE}/{batch.id}")

    def queued(self) -> list[tuple[str, str]]:
        """Return owner and id of every batch that has not ended, the oldest first."""
        found = [(self.store.read(name), name.removeprefix(f"{QUEUE}/")) for name in self.store.list(QUEUE)]
        return [(owner.decode(), batch_id) for owner, batch_id in found if owner is not None]

    def tidy(self) -> None:
        """Delete files whose time is over, and the records of batches that ended long ago."""
        names = self.store.list("")
        for owner in sorted({name.split("/")[0] for name in names if "/files/" in name}):
            self.files.delete_expired(owner)
        for name in names:
            if "/batches/" in name and name.endswith(RECORD) and (text := self.store.read(name)) is not None:
                batch = Batch.from_json(text)
                if not batch.is_open and batch.expires_at + FORGET_AFTER_S < time.time():
                    self.store.delete(name)

    def _take_input(self, batch: Batch) -> bool:
        if not FILE_ID.fullmatch(batch.input_file_id):
            return False
        try:
            stored = self.files.get(batch.owner, batch.input_file_id)
        except UnknownObject:
            return False
        self.files.check_room(stored.bytes)
        source = content_name(batch.owner, stored.id)
        return stored.purpose == "batch" and self.store.copy(source, input_name(batch))


def folder_of(owner: str, batch_id: str) -> str:
    """Return the name below which a batch's objects lie."""
    return f"{owner}/batches/{batch_id}"


def input_name(batch: Batch) -> str:
    """Return the name of a batch's requests."""
    return f"{folder_of(batch.owner, batch.id)}/input.jsonl"


def listing(documents: list[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """Return a page of objects as OpenAI has it."""
    ids = [document["id"] for document in documents] or [None]
    return {"object": "list", "data": documents, "first_id": ids[0], "last_id": ids[-1], "has_more": has_more}
