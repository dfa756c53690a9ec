"""A checkpoint in a bucket: listed once, then read by generation.

Every read names the generation that the listing saw, so an object that is overwritten meanwhile is an error and never
a mix of old and new bytes; every byte is summed and compared with the sum in the listing.
Source: https://cloud.google.com/storage/docs/json_api/v1/objects (list, get, alt=media)
"""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import quote

from service.errors import CheckpointNotFound, CorruptObject, MalformedCheckpoint, ObjectChanged, TransferFailed
from service.storage import crc32c
from service.storage.cache.cache import CheckpointCache, PulledCheckpoint
from service.storage.gcs.http import GcsTransport
from service.storage.gcs.keep_alive import Answer
from service.storage.gzip import decoded
from service.storage.location import GcsLocation
from service.storage.objects import ObjectInfo, check_name
from service.storage.progress import Progress
from service.storage.retry import Patience, ThroughputWatchdog, TransferLimits, TransientFault

MAX_LISTING_BYTES = 64 * 1024 * 1024  # of one page of a thousand objects
MAX_READ_BYTES = 256 * 1024 * 1024
LIST_FIELDS = "nextPageToken,items(name,size,crc32c,generation,contentEncoding)"


class GcsSource:
    """The objects below one prefix of a bucket."""

    def __init__(self, location: GcsLocation, *, emulator_host: str | None, limits: TransferLimits) -> None:
        """Find the credentials.

        Raises:
            AccessDenied: there are none.
        """
        self.uri = location.uri
        self.limits = limits
        self._prefix = f"{location.prefix}/" if location.prefix else ""
        self._transport = GcsTransport(location, emulator_host, limits)

    def __enter__(self) -> "GcsSource":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def list(self) -> tuple[ObjectInfo, ...]:
        """List every object below the prefix, markers of empty folders left out.

        Raises:
            CheckpointNotFound: there is no such bucket, or nothing below the prefix.
            AccessDenied: the account may not list.
            HostileName: an object's name would lead outside its folder.
            TransferFailed: the listing did not come within its retries or its deadline.
        """
        patience = Patience(self.limits)
        objects: list[ObjectInfo] = []
        token: str | None = ""
        while token is not None:
            patience.check(self.uri, "listing")
            page = patience.try_often(lambda token=token: self._page(token), self.uri, "listing")
            objects += [self._info(item) for item in page.get("items", ()) if not item["name"].endswith("/")]
            token = page.get("nextPageToken")
        if not objects:
            raise CheckpointNotFound(self.uri, "the bucket is there, but no object lies below this prefix.")
        return tuple(objects)

    def read(self, info: ObjectInfo) -> bytes:
        """Read a small file whole, checked; an object stored with gzip comes unpacked.

        Raises:
            CorruptObject: the sum was wrong twice.
            ObjectChanged: the object was overwritten or deleted since it was listed.
            MalformedCheckpoint: the file is too large to be read whole.
            TransferFailed: the bytes did not come within their retries or their deadline.
        """
        if info.size_bytes > MAX_READ_BYTES:
            raise MalformedCheckpoint(self.uri, info.name, f"{info.size_bytes:,} bytes are too many for this file.")
        patience = Patience(self.limits)

        def attempt() -> bytes:
            data = bytearray(info.size_bytes)
            rooms = [memoryview(data)]
            for num_bytes in self.stream(info, 0, len(data), lambda: rooms[-1], patience):
                rooms.append(rooms[-1][num_bytes:])
            return bytes(data)

        actual = ""
        for _ in range(2):
            data = patience.try_often(attempt, self.uri, info.name)
            actual = crc32c.to_text(crc32c.extend(0, data))
            if actual == info.crc32c:
                return decoded(self.uri, info, data)
        raise CorruptObject(self.uri, info.name, expected=info.crc32c, actual=actual)

    def stream(
        self, info: ObjectInfo, start: int, length: int, room: Callable[[], memoryview], patience: Patience
    ) -> Iterator[int]:
        """Read `length` bytes of an object from byte `start`, as they are stored; once, unchecked. See `ByteRanges`.

        Raises:
            TransientFault: the body stopped, broke off or trickled; what came before is right as far as it goes.
            ObjectChanged: the object was overwritten or deleted since it was listed.
            TransferFailed: the deadline has passed.
        """
        if length == 0:
            return
        path = f"o/{quote(self._prefix + info.name, safe='')}"
        params = {"alt": "media", "generation": info.generation}
        # Asking for gzip gets an object that is stored with gzip as it is stored, which is what its sum is of.
        headers = {"Range": f"bytes={start}-{start + length - 1}", "Accept-Encoding": "gzip"}
        with self._transport.get(path, params, headers, (info.name, info.generation)) as answer:
            self._check_is_asked_for(answer, info, start, length)
            watchdog = ThroughputWatchdog(self.limits)
            left_bytes = length
            while left_bytes:
                patience.check(self.uri, info.name)
                num_bytes = answer.read_into(room()[:left_bytes])
                if not num_bytes:
                    raise TransientFault("the body ended early")
                watchdog.add(num_bytes)
                left_bytes -= num_bytes
                yield num_bytes

    def pull(
        self,
        objects: Sequence[ObjectInfo],
        cache: CheckpointCache,
        progress: Progress,
        cancelled: threading.Event | None = None,
    ) -> PulledCheckpoint:
        """Bring objects into the cache; see `CheckpointCache.pull`."""
        return cache.pull(self, objects, progress, cancelled)

    def _page(self, token: str) -> dict[str, Any]:
        params: dict[str, str | int] = {"prefix": self._prefix, "fields": LIST_FIELDS, "maxResults": 1000}
        if token:
            params["pageToken"] = token
        with self._transport.get("o", params, {}) as answer:
            try:
                return json.loads(answer.read(MAX_LISTING_BYTES))
            except ValueError as error:
                raise TransientFault("the listing is no JSON") from error

    def _info(self, item: dict[str, Any]) -> ObjectInfo:
        name = item["name"].removeprefix(self._prefix)
        check_name(self.uri, name)
        if not item.get("crc32c"):
            raise TransferFailed(self.uri, name, "the listing has no crc32c for it, so its bytes cannot be checked.")
        return ObjectInfo(
            name=name,
            size_bytes=int(item["size"]),
            crc32c=item["crc32c"],
            generation=int(item["generation"]),
            content_encoding=item.get("contentEncoding", ""),
        )

    def _check_is_asked_for(self, answer: Answer, info: ObjectInfo, start: int, length: int) -> None:
        generation = answer.headers.get("X-Goog-Generation")
        if generation is not None and generation != str(info.generation):
            raise ObjectChanged(self.uri, info.name, info.generation)
        if answer.status == 206:
            came = answer.headers.get("Content-Range", "")
            if came != f"bytes {start}-{start + length - 1}/{info.size_bytes}":
                raise TransientFault(f"another range came than was asked for ({came[:60]!r})")
        elif start != 0 or length != info.size_bytes or answer.headers.get("Content-Length") != str(length):
            raise TransientFault("the whole object came where a range was asked for")
