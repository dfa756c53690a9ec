"""The batches of all owners: created, listed and cancelled here, run by `worker`.

OWNER/batches/ID/record.json      its state
OWNER/batches/ID/input.jsonl      its requests, a copy that outlives the file
OWNER/batches/ID/answers/…        answers so far
queue/ID                          its owner, until it has ended
claims/ID                         held by the process that runs it

Its record is written last when it is created, and only moves forward, whichever process changes it.
"""

import asyncio
import time
from collections.abc import Collection, Iterable
from typing import Any

from service.api.batch.files import Files, content_name, ids_after
from service.api.batch.names import BATCH_ID, BATCH_PREFIX, FILE_ID, RECORD, is_forgotten, new_id
from service.api.batch.records import Batch
from service.errors import InvalidParameter, UnknownObject
from service.storage.ages import expiry_time
from service.storage.store import ObjectStore

QUEUE, CLAIMS = "queue", "claims"
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
        self.store.write(record_name(batch), batch.to_json(), replaces=False)
        return batch

    def get(self, owner: str, batch_id: str) -> Batch:
        """Return a batch; raises UnknownObject."""
        batch = self.stored(owner, batch_id) if BATCH_ID.fullmatch(batch_id) else None
        if batch is None:
            raise UnknownObject("batch", batch_id)
        live = self.live.get(batch_id)
        if live is not None and batch.is_open:
            batch.completed, batch.failed, batch.tokens = live.completed, live.failed, dict(live.tokens)
        return batch

    def stored(self, owner: str, batch_id: str) -> Batch | None:
        """Return a batch's record, as of its last change; None if there is none."""
        text = self.store.read(f"{folder_of(owner, batch_id)}/{RECORD}")
        return None if text is None else Batch.from_json(text)

    def page(self, owner: str, *, limit: int, after: str | None) -> tuple[list[Batch], bool]:
        """Return the next batches, the newest first, and whether there are more."""
        names = self.store.list(f"{owner}/batches")
        ids = {name.split("/")[2] for name in names if name.endswith(RECORD)}
        following = ids_after(ids, after, BATCH_ID, is_ascending=False)
        return [self.get(owner, batch_id) for batch_id in following[:limit]], len(following) > limit

    def cancel(self, owner: str, batch_id: str) -> Batch:
        """Ask whichever process runs a batch to end it.

        Raises:
            UnknownObject: there is none.
            InvalidParameter: it has ended.
        """
        batch = self.get(owner, batch_id)

        def change(record: bytes | None) -> bytes | None:
            if record is None:
                return None
            cancelled = Batch.from_json(record)
            if cancelled.status not in ("validating", "in_progress"):
                return None
            cancelled.enter("cancelling")
            return cancelled.to_json()

        if (record := self.store.update(record_name(batch), change)) is None:
            raise UnknownObject("batch", batch_id)
        cancelled = Batch.from_json(record)
        if not cancelled.is_open:
            message = f"Cannot cancel a batch with status '{cancelled.status}'."
            raise InvalidParameter(message, param="batch_id")
        return cancelled

    def interrupt(self, batch: Batch) -> None:
        """End a batch that was cancelled at once if this process runs it; called on the event loop."""
        if batch.status == "cancelling" and (cancelled := self.cancelled.get(batch.id)) is not None:
            cancelled.set()

    def save(self, batch: Batch) -> Batch | None:
        """Write a batch's record unless that would set it back; return what it is then, None if it is gone."""

        def change(record: bytes | None) -> bytes | None:
            if record is None or record == (content := batch.to_json()):
                return None
            return content if Batch.from_json(record).may_become(batch) else None

        record = self.store.update(record_name(batch), change)
        return None if record is None else Batch.from_json(record)

    def end(self, batch: Batch) -> None:
        """Keep nothing of a batch that has ended but its record."""
        folder = folder_of(batch.owner, batch.id)
        for name in self.store.list(folder):
            if name != record_name(batch):
                self.store.delete(name)
        self.store.delete(f"{QUEUE}/{batch.id}")

    def queued(self) -> list[tuple[str, str]]:
        """Return owner and id of every batch that has not ended, the oldest first."""
        found = [(self.store.read(name), name.removeprefix(f"{QUEUE}/")) for name in self.store.list(QUEUE)]
        return [(owner.decode(), batch_id) for owner, batch_id in found if owner is not None]

    def tidy(self) -> None:
        """Delete files whose time is over, the records of batches that ended long ago, and what was left by kills."""
        self.store.sweep()
        names = self.store.list("")
        open_ids, results = set[str](), dict[str, set[str]]()
        for name in names:
            if "/batches/" in name and name.endswith(RECORD) and (text := self.store.read(name)) is not None:
                batch = Batch.from_json(text)
                if batch.is_open:
                    open_ids.add(batch.id)
                    continue
                results[batch.id] = batch.file_ids
                if batch.expires_at + FORGET_AFTER_S < expiry_time():
                    self.store.delete(name)
        for owner in sorted({name.split("/")[0] for name in names if "/files/" in name}):
            self.files.tidy(owner, results)
        self._delete_leftovers(names, open_ids)

    def _delete_leftovers(self, names: Iterable[str], open_ids: Collection[str]) -> None:
        """Delete all but the records of batches that have ended, or were never recorded, and claims of the killed."""
        for name in names:
            if (found := BATCH_ID.search(name)) is None or not is_forgotten(found[0]):
                continue
            if name.startswith(CLAIMS):
                if (claim := self.store.claim(found[0])) is not None:
                    claim.release()
            elif found[0] not in open_ids and not name.endswith(RECORD):
                self.store.delete(name)

    def _take_input(self, batch: Batch) -> bool:
        if not FILE_ID.fullmatch(batch.input_file_id):
            return False
        try:
            stored = self.files.get(batch.owner, batch.input_file_id)
        except UnknownObject:
            return False
        self.files.check_room(stored.bytes)
        source = content_name(batch.owner, stored)
        return stored.purpose == "batch" and self.store.copy(source, input_name(batch))


def folder_of(owner: str, batch_id: str) -> str:
    """Return the name below which a batch's objects lie."""
    return f"{owner}/batches/{batch_id}"


def record_name(batch: Batch) -> str:
    """Return the name of a batch's record."""
    return f"{folder_of(batch.owner, batch.id)}/{RECORD}"


def input_name(batch: Batch) -> str:
    """Return the name of a batch's requests."""
    return f"{folder_of(batch.owner, batch.id)}/input.jsonl"


def listing(documents: list[dict[str, Any]], *, has_more: bool) -> dict[str, Any]:
    """Return a page of objects as OpenAI has it."""
    ids = [document["id"] for document in documents] or [None]
    return {"object": "list", "data": documents, "first_id": ids[0], "last_id": ids[-1], "has_more": has_more}
