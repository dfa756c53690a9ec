"""The output of a batch in shards: an object for each chunk, created only if absent, so each line has one answer.

job.json                      what the parts are answers to: the input, the model, settings that change answers
part-00007-of-00042.jsonl     the answers of chunk 7, in the order of its lines
kept/00007/….jsonl            answers of a chunk that a process could not finish
claims/…                      who works on a chunk at the moment
manifest.json                 the sums, once there is every part
answers.jsonl                 all parts in one file, with --single
"""

import errno
import json
import logging
import re
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from service.offline.batch_file import BatchFileError
from service.offline.shards.chunks import Chunk
from service.storage.files import CANNOT_LOCK
from service.storage.store import Claim, ObjectStore

logger = logging.getLogger(__name__)

JOB, MANIFEST, SINGLE = "job.json", "manifest.json", "answers.jsonl"
KEPT, CLAIMS = "kept", "claims"
PART = re.compile(r"part-(\d+)-of-(\d+)\.jsonl")


class Parts:
    """The place of the answers. Every method blocks, and raises BatchFileError or CheckpointError if it fails."""

    def __init__(self, store: ObjectStore, num_chunks: int) -> None:
        self.uri = store.uri
        self._store = store
        self._num_chunks = num_chunks

    def begin(self, job: dict[str, Any]) -> None:
        """Write what the parts will be answers to, or check that it is the same.

        Raises:
            BatchFileError: there are answers to something else, or the place cannot be written.
        """
        with self._naming_disk_errors():
            text = json.dumps(job, ensure_ascii=False, indent=1).encode()
            present = self._store.list("") if self._store.read(JOB) is None else {}
            if strangers := [name for name in present if PART.fullmatch(name)]:
                raise BatchFileError(self.uri, 0, f"has {strangers[0]} but no {JOB}. Name another folder.")
            # A writer whose answer was lost finds its own.
            self._store.write(JOB, text, replaces=False)
            found = json.loads(self._store.read(JOB) or text)
        if reason := _difference(found, json.loads(text)):
            raise BatchFileError(self.uri, 0, f"has answers to another batch: {reason}. Name another folder.")

    def present(self) -> set[int]:
        """Return the numbers of the chunks that have a part."""
        with self._naming_disk_errors():
            found = map(PART.fullmatch, self._store.list(""))
        return {int(match[1]) for match in found if match is not None}

    def claim(self, chunk: Chunk, owner: str) -> Claim | None:
        """Claim a chunk; None while another process works on it.

        A place that cannot lock files gives everyone what they ask for, so two may do the same work.
        """
        try:
            with self._naming_disk_errors():
                return self._store.claim(f"{chunk.number:05d}", owner)
        except BatchFileError as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in CANNOT_LOCK - {
                errno.EACCES,
                errno.EROFS,
            }:
                return _Unlocked()
            raise

    def write(self, chunk: Chunk, rows: Sequence[bytes]) -> None:
        """Write the part of a chunk, unless another process has, and drop what was kept of it."""
        with self._naming_disk_errors():
            self._store.write(self.name_of(chunk.number), b"".join(rows), replaces=False)
            if self._store.list(self._kept(chunk)):
                self._store.delete_folder(self._kept(chunk))

    def keep(self, chunk: Chunk, rows: Sequence[bytes]) -> None:
        """Write answers of a chunk that is not complete, for whoever takes it next."""
        with self._naming_disk_errors():
            self._store.write(f"{self._kept(chunk)}/{uuid.uuid4().hex}.jsonl", b"".join(rows), replaces=False)

    def kept(self, chunk: Chunk) -> Iterator[dict[str, Any]]:
        """Yield the answers that were kept of a chunk; one may be there twice."""
        with self._naming_disk_errors():
            for name in self._store.list(self._kept(chunk)):
                for row in (self._store.read(name) or b"").splitlines():
                    yield json.loads(row)

    def rows(self, number: int) -> Iterator[dict[str, Any]]:
        """Yield the answers of a part."""
        with self._naming_disk_errors():
            file = self._store.open(self.name_of(number))
            if file is None:
                raise BatchFileError(f"{self.uri}/{self.name_of(number)}", 0, "was deleted meanwhile. Run again.")
            with file:
                yield from map(json.loads, file)

    def compose(self) -> None:
        """Make one file of all parts, unless there is one."""
        with self._naming_disk_errors():
            if SINGLE in self._store.list(""):
                return
            self._store.concatenate([self.name_of(number) for number in range(self._num_chunks)], SINGLE)

    def read_manifest(self) -> dict[str, Any] | None:
        with self._naming_disk_errors():
            text = self._store.read(MANIFEST)
        return None if text is None else json.loads(text)

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Write the sums, and with all parts delete what only unfinished chunks need."""
        with self._naming_disk_errors():
            self._store.write(MANIFEST, json.dumps(manifest, ensure_ascii=False, indent=1).encode())
            if not manifest["missing"]:
                self._store.delete_folder(KEPT)
                self._store.delete_folder(CLAIMS)

    def name_of(self, number: int) -> str:
        """Return the name of a part."""
        return f"part-{number:05d}-of-{self._num_chunks:05d}.jsonl"

    def close(self) -> None:
        self._store.close()

    def _kept(self, chunk: Chunk) -> str:
        return f"{KEPT}/{chunk.number:05d}"

    @contextmanager
    def _naming_disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = f"cannot be written: {error.strerror}. What is there stays; run again once it can."
            raise BatchFileError(self.uri, 0, reason) from error


class _Unlocked:
    """A claim in a place that cannot lock."""

    def renew(self) -> bool:
        return True

    def release(self) -> None:
        """Do nothing."""


def _difference(found: dict[str, Any], wanted: dict[str, Any]) -> str | None:
    """Say what differs between the job of a place and the one that is to be run; None if nothing does."""
    if found == wanted:
        return None
    there, here = ({file["name"]: file for file in job.get("input", ())} for job in (found, wanted))
    for name in sorted(there.keys() | here.keys()):
        if there.get(name) != here.get(name):
            if name in there and name in here:
                return f"its input had another content of {name}"
            return f"its input {'had' if name in there else 'did not have'} {name}"
    before, now = found.get("checkpoint", {}), wanted["checkpoint"]
    if before != now:
        is_same = before.get("uri") == now["uri"]
        return f"its model was {'another version of ' if is_same else ''}{before.get('uri')}"
    settings, wanted_settings = found.get("settings", {}), wanted["settings"]
    differing = [name for name in wanted_settings if settings.get(name) != wanted_settings[name]]
    if differing:
        name = differing[0]
        return f"{name} was {settings.get(name)!r} and is {wanted_settings[name]!r}"
    return "it was cut into other chunks"
