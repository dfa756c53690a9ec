"""Ranged reads of GCS objects, pinned to the generation from one listing or to one that the operator chose.

Overwriting an object after the listing causes an error, never a mix of old and new bytes. Whole objects are verified
against the checksum of the listing; callers verify ranges themselves.
Source: https://cloud.google.com/storage/docs/json_api/v1/objects (list, get, alt=media)
"""

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

from service.errors import (
    CheckpointNotFound,
    CorruptObject,
    GenerationGone,
    HostileName,
    MalformedCheckpoint,
    ObjectChanged,
    TransferFailed,
)
from service.observability.progress import Progress
from service.storage import crc32c
from service.storage.cache.cache import CheckpointCache, PulledCheckpoint
from service.storage.gcs.connections import Response
from service.storage.gcs.http import GcsTransport
from service.storage.gzip import unpacked
from service.storage.location import GcsLocation
from service.storage.objects import ObjectInfo, check_name, read_range
from service.storage.open_files import OpenFiles, open_bucket
from service.storage.retry import RetryBudget, ThroughputWatchdog, TransferLimits, TransientFault

MAX_LISTING_BYTES = 64 * 1024 * 1024  # of one page of a thousand objects
MAX_READ_BYTES = 256 * 1024 * 1024
OBJECT_FIELDS = "name,size,crc32c,generation,contentEncoding"
LIST_FIELDS = f"nextPageToken,items({OBJECT_FIELDS})"


class GcsSource:
    """The objects below one prefix of a bucket."""

    def __init__(
        self,
        location: GcsLocation,
        *,
        emulator_host: str | None,
        limits: TransferLimits,
        generations: Mapping[str, int] | None = None,
    ) -> None:
        """Find the credentials.

        Args:
            location: the bucket and prefix.
            emulator_host: STORAGE_EMULATOR_HOST.
            limits: limits on listing and reading.
            generations: generations to use instead of the live ones, by object name.

        Raises:
            AccessDenied: there are no credentials.
        """
        self.uri = location.uri
        self.limits = limits
        self._prefix = f"{location.prefix}/" if location.prefix else ""
        self._generations = dict(generations or {})
        self._transport = GcsTransport(location, emulator_host, limits)

    def __enter__(self) -> "GcsSource":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()

    def list(
        self, below: str = "", *, on_hostile: Callable[[HostileName], None] | None = None
    ) -> tuple[ObjectInfo, ...]:
        """List every object below the prefix except the markers of empty folders.

        Args:
            below: list only names with this prefix.
            on_hostile: called for each name that would escape its folder, which is then skipped; None raises instead.

        Raises:
            CheckpointNotFound: there is no such bucket, or nothing below the prefix.
            AccessDenied: the account may not list.
            HostileName: an object's name would escape its folder.
            TransferFailed: retries or the deadline ran out.
            GenerationGone: an object does not have the generation that it is pinned to.
        """
        budget = RetryBudget(self.limits)
        objects: list[ObjectInfo] = []
        token: str | None = ""
        while token is not None:
            page = self._page(below, token, budget)
            for item in page.get("items", ()):
                if not item["name"].endswith("/"):
                    try:
                        objects.append(self._info(item))
                    except HostileName as error:
                        if on_hostile is None:
                            raise
                        on_hostile(error)
            token = page.get("nextPageToken")
        pinned = {name: generation for name, generation in self._generations.items() if name.startswith(below)}
        objects = [info for info in objects if pinned.get(info.name, info.generation) == info.generation]
        others = pinned.keys() - {info.name for info in objects}
        objects += [self._pinned(name, pinned[name], budget) for name in sorted(others)]
        if not objects:
            raise CheckpointNotFound(self.uri, "the bucket is there, but no object lies below this prefix.")
        return tuple(objects)

    def read(self, info: ObjectInfo) -> bytes:
        """Read and verify a small file; an object stored with gzip is unpacked.

        Raises:
            CorruptObject: the checksum did not match twice.
            ObjectChanged: the object was overwritten or deleted since it was listed.
            MalformedCheckpoint: the file is too large to be read whole.
            TransferFailed: retries or the deadline ran out.
        """
        if info.size_bytes > MAX_READ_BYTES:
            raise self._too_large(info)
        actual = ""
        for _ in range(2):
            data = read_range(self, info, 0, info.size_bytes, RetryBudget(self.limits))
            actual = crc32c.to_text(crc32c.extend(0, data))
            if actual == info.crc32c:
                return unpacked(self.uri, info, data)
        raise CorruptObject(self.uri, info.name, expected=info.crc32c, actual=actual)

    def find(self, name: str) -> ObjectInfo | None:
        """Describe the live version of an object; return None if there is none.

        Raises:
            AccessDenied, HostileName, TransferFailed: see `list`.
        """
        try:
            return self._described(name, {}, RetryBudget(self.limits))
        except ObjectChanged:
            return None

    def age_s(self, name: str) -> tuple[ObjectInfo, float] | None:
        """Describe the live version of an object, and how long ago it was written by the bucket's own clock.

        Returns None if there is none. Raises as `find`.
        """
        try:
            item, sent = self._item(name, {}, f"{OBJECT_FIELDS},updated", RetryBudget(self.limits))
        except ObjectChanged:
            return None
        try:
            # Source: https://cloud.google.com/storage/docs/json_api/v1/objects#resource (updated)
            age = parsedate_to_datetime(sent) - datetime.fromisoformat(item["updated"])
        except (ValueError, KeyError) as error:
            raise TransferFailed(self.uri, name, "the server does not say how old it is.") from error
        return self._info(item), age.total_seconds()

    def read_live(self, name: str) -> tuple[ObjectInfo, bytes] | None:
        """Read and verify the live version of a small object with one request; return None if there is none.

        Raises:
            CorruptObject, MalformedCheckpoint, TransferFailed: see `read`.
            AccessDenied: the account may not read.
        """
        check_name(self.uri, name)
        budget = RetryBudget(self.limits)
        expected = actual = ""
        for _ in range(2):
            try:
                info, data = self._read_live(name, budget)
            except ObjectChanged:
                return None
            expected, actual = info.crc32c, crc32c.to_text(crc32c.extend(0, data))
            if actual == expected:
                return info, unpacked(self.uri, info, data)
        raise CorruptObject(self.uri, name, expected=expected, actual=actual)

    def open_range(self, info: ObjectInfo, start: int, num_bytes: int, budget: RetryBudget) -> "_ObjectRange":
        """Open a range of an object's stored bytes, without verifying them; see `RangeSource`."""
        path = self._path(info.name)
        return _ObjectRange(self._transport, path, self.uri, info, budget, start=start, end=start + num_bytes)

    def open_ranges(self) -> AbstractContextManager["GcsSource"]:
        """Return the bucket itself."""
        return nullcontext(self)

    def pull(
        self,
        objects: Sequence[ObjectInfo],
        cache: CheckpointCache,
        progress: Progress,
        cancelled: threading.Event | None = None,
    ) -> PulledCheckpoint:
        return cache.pull(self, objects, progress, cancelled)

    def is_on_this_machine(self, objects: Sequence[ObjectInfo], cache: CheckpointCache | None) -> bool:
        """Return whether the cache has all of these files."""
        kept = None if cache is None else cache.find(self, objects)
        if kept is not None:
            kept.release()
        return kept is not None

    def open_files(
        self,
        objects: Sequence[ObjectInfo],
        chosen: Sequence[ObjectInfo],
        *,
        cache: CheckpointCache | None,
        progress: Progress,
        cancelled: threading.Event | None = None,
    ) -> AbstractContextManager[OpenFiles]:
        return open_bucket(self, objects, chosen, cache=cache, progress=progress, cancelled=cancelled)

    def _page(self, below: str, token: str, budget: RetryBudget) -> dict[str, Any]:
        params: dict[str, str | int] = {"prefix": self._prefix + below, "fields": LIST_FIELDS, "maxResults": 1000}
        if token:
            params["pageToken"] = token
        page: dict[str, Any] = {}
        for attempt in budget.attempts(self.uri, "listing"):
            with attempt:
                budget.check(self.uri, "listing")
                with self._transport.get("o", params, {}) as response:
                    try:
                        page = json.loads(response.read(MAX_LISTING_BYTES))
                    except ValueError as error:
                        raise TransientFault("the listing is not JSON") from error
        return page

    def _path(self, name: str) -> str:
        return f"o/{quote(self._prefix + name, safe='')}"

    def _pinned(self, name: str, generation: int, budget: RetryBudget) -> ObjectInfo:
        """Look up an object at a noncurrent generation."""
        try:
            return self._described(name, {"generation": generation}, budget)
        except ObjectChanged as error:
            raise GenerationGone(self.uri, name, generation) from error

    def _described(self, name: str, version: Mapping[str, int], budget: RetryBudget) -> ObjectInfo:
        return self._info(self._item(name, version, OBJECT_FIELDS, budget)[0])

    def _item(
        self, name: str, version: Mapping[str, int], fields: str, budget: RetryBudget
    ) -> tuple[dict[str, Any], str]:
        """Return the fields of an object, and the date of the answer, which the server's clock gives."""
        check_name(self.uri, name)
        params: dict[str, str | int] = {**version, "fields": fields}
        item, sent = dict[str, Any](), ""
        for attempt in budget.attempts(self.uri, name):
            with attempt:
                pinned = (name, version.get("generation", 0))
                try:
                    with self._transport.get(self._path(name), params, {}, pinned) as response:
                        item, sent = json.loads(response.read(MAX_LISTING_BYTES)), response.headers.get("Date", "")
                except ValueError as error:
                    raise TransientFault("the description of the object is not JSON") from error
        return item, sent

    def _read_live(self, name: str, budget: RetryBudget) -> tuple[ObjectInfo, bytes]:
        info, data = ObjectInfo(name, 0), bytearray()
        for attempt in budget.attempts(self.uri, name):
            with attempt:
                budget.check(self.uri, name)
                headers = {"Accept-Encoding": "gzip"}
                with self._transport.get(self._path(name), {"alt": "media"}, headers, (name, 0)) as response:
                    info = self._info(_described_by(self._prefix + name, response))
                    if info.size_bytes > MAX_READ_BYTES:
                        raise self._too_large(info)
                    data = bytearray(info.size_bytes)
                    _fill(memoryview(data), response, self.limits)
        return info, bytes(data)

    def _too_large(self, info: ObjectInfo) -> MalformedCheckpoint:
        return MalformedCheckpoint(self.uri, info.name, f"{info.size_bytes:,} bytes are too many for this file.")

    def _info(self, item: dict[str, Any]) -> ObjectInfo:
        name = item["name"].removeprefix(self._prefix)
        check_name(self.uri, name)
        if not item.get("crc32c"):
            raise TransferFailed(self.uri, name, "the listing has no crc32c for it, so it cannot be verified.")
        return ObjectInfo(
            name=name,
            size_bytes=int(item["size"]),
            crc32c=item["crc32c"],
            generation=int(item["generation"]),
            content_encoding=item.get("contentEncoding", ""),
        )


def _described_by(name: str, response: Response) -> dict[str, Any]:
    """Return the description of an object that the headers of its bytes give.

    Source: https://cloud.google.com/storage/docs/xml-api/reference-headers
    """
    sums = ",".join(response.headers.get_all("X-Goog-Hash", [])).split(",")
    return {
        "name": name,
        "size": response.headers.get("Content-Length", "0"),
        "crc32c": next((text.partition("=")[2] for text in sums if text.strip().startswith("crc32c=")), ""),
        "generation": response.headers.get("X-Goog-Generation", "0"),
        "contentEncoding": response.headers.get("Content-Encoding", ""),
    }


def _fill(buffer: memoryview, response: Response, limits: TransferLimits) -> None:
    watchdog = ThroughputWatchdog(limits)
    while buffer:
        num_bytes = response.readinto(buffer)
        if not num_bytes:
            raise TransientFault("the body ended early")
        watchdog.add(num_bytes)
        buffer = buffer[num_bytes:]


class _ObjectRange:
    """A range of one object's bytes; an interrupted body is resumed where it stopped."""

    def __init__(
        self,
        transport: GcsTransport,
        path: str,
        uri: str,
        info: ObjectInfo,
        budget: RetryBudget,
        *,
        start: int,
        end: int,
    ) -> None:
        self._transport, self._path, self._uri, self._info, self._budget = transport, path, uri, info, budget
        self._next, self._end = start, end  # the next byte to read, and one past the last
        self._response: Response | None = None
        self._watchdog = ThroughputWatchdog(budget.limits)

    def __enter__(self) -> "_ObjectRange":
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def readinto(self, buffer: memoryview) -> None:
        filled = 0
        for attempt in self._budget.attempts(self._uri, self._info.name):
            with attempt:
                while filled < len(buffer):
                    filled += self._read_some(buffer[filled:])

    def _read_some(self, buffer: memoryview) -> int:
        self._budget.check(self._uri, self._info.name)
        try:
            response = self._response = self._response or self._request()
            num_bytes = response.readinto(buffer)
            if not num_bytes:
                raise TransientFault("the body ended early")
            self._watchdog.add(num_bytes)
        except TransientFault:
            self._close()
            raise
        self._next += num_bytes
        return num_bytes

    def _request(self) -> Response:
        version = (self._info.name, self._info.generation)
        params = {"alt": "media", "generation": self._info.generation}
        # Accepting gzip disables decompressive transcoding: the checksum is that of the stored bytes.
        headers = {"Range": f"bytes={self._next}-{self._end - 1}", "Accept-Encoding": "gzip"}
        response = self._transport.get(self._path, params, headers, version)
        try:
            self._check_range(response)
        except BaseException:
            response.close()
            raise
        self._watchdog = ThroughputWatchdog(self._budget.limits)
        return response

    def _check_range(self, response: Response) -> None:
        generation = response.headers.get("X-Goog-Generation")
        if generation is not None and generation != str(self._info.generation):
            raise ObjectChanged(self._uri, self._info.name, self._info.generation)
        if response.status == 206:
            received = response.headers.get("Content-Range", "")
            if received != f"bytes {self._next}-{self._end - 1}/{self._info.size_bytes}":
                raise TransientFault(f"the server returned a range that was not requested ({received[:60]!r})")
            return
        length = response.headers.get("Content-Length")
        if (self._next, self._end) != (0, self._info.size_bytes) or length != str(self._end):
            raise TransientFault("the server returned the whole object instead of a range")

    def _close(self) -> None:
        if self._response is not None:
            self._response.close()
            self._response = None
