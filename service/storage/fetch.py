"""Objects by ranges, in parallel: each byte is fetched once, summed, and given to whoever wants it.

An object's slices come in any order, each summed when it is there; when the last has come the sums are combined and
compared with the listing. The bytes go to a file beside, to a consumer such as weights that are being made, or both.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, runtime_checkable

import numpy as np

from service.errors import CorruptObject, StorageFull, TransferFailed
from service.storage import crc32c
from service.storage.crew import work_off
from service.storage.objects import ObjectInfo
from service.storage.part_file import PartFile
from service.storage.progress import Progress
from service.storage.retry import Patience
from service.storage.slices import Piece, Slice


@runtime_checkable
class ByteRanges(Protocol):
    """Whatever the bytes of an object can be read from, by range."""

    uri: str

    def stream(
        self, info: ObjectInfo, start: int, length: int, room: Callable[[], memoryview], patience: Patience
    ) -> Iterator[int]:
        """Read a range as it arrives; a `TransientFault` may interrupt it.

        Args:
            info: the object.
            start: the first byte.
            length: how many bytes.
            room: asked, before each arrival, where to put it.
            patience: how long it may take.

        Yields:
            How many bytes were put at the beginning of the room.
        """
        ...


@runtime_checkable
class PieceConsumer(Protocol):
    """Whoever makes something of an object's bytes while they come."""

    def admitted(self, part: Slice, patience: Patience) -> AbstractContextManager[None]:
        """Wait until there is room for what becomes of a slice."""
        ...

    def take(self, piece: Piece, data: np.ndarray) -> None:
        """Use a piece's bytes, which are overwritten afterwards."""
        ...


class ObjectFetch:
    """One object on its way."""

    def __init__(
        self,
        source: ByteRanges,
        info: ObjectInfo,
        slices: Sequence[Slice],
        progress: Progress,
        *,
        head: bytes = b"",
        part: PartFile | None = None,
        consumer: PieceConsumer | None = None,
    ) -> None:
        """Plan a fetch.

        Args:
            source: where the bytes come from.
            info: which object; without a sum its bytes are taken for what they are.
            slices: what to fetch; with `head` all of the object, in order and without a gap.
            progress: told what comes.
            head: the object's first bytes, if they are here already.
            part: the file beside. With a consumer a disk that fails is the file's misfortune alone: see `part_error`.
            consumer: who makes something of the bytes.
        """
        self.info, self.slices = info, slices
        self.file_sum: str | None = None  # of the file that was put in place
        self.part_error: StorageFull | TransferFailed | None = None  # why there is none
        self.actual_sum = ""
        self._source, self._progress, self._head = source, progress, head
        self._part, self._consumer = part, consumer
        self._lock = threading.Lock()
        self._sums: dict[int, int] = {}
        progress.add(len(head))

    @property
    def is_right(self) -> bool:
        """Whether all bytes have come and are those of the listing."""
        return len(self._sums) == len(self.slices) and self.actual_sum == self.info.crc32c

    def fetch(self, index: int, buffer: np.ndarray, patience: Patience) -> None:
        """Fetch one slice, piece by piece through a buffer; whoever fetches the last slice compares the sum."""
        part = self.slices[index]
        patience.check(self._source.uri, self.info.name)
        with nullcontext() if self._consumer is None else self._consumer.admitted(part, patience):
            crc = self._fetch_slice(part, buffer, patience)
        with self._lock:
            self._sums[index] = crc
            is_last = len(self._sums) == len(self.slices)
        if is_last:
            self._finish()

    def check(self, uri: str) -> None:
        """Refuse bytes that are not those of the listing.

        Raises:
            CorruptObject: with both sums.
        """
        if not self.is_right:
            raise CorruptObject(uri, self.info.name, expected=self.info.crc32c, actual=self.actual_sum)

    def discard(self) -> None:
        """Delete what is left of the file beside; no thread may be fetching any more."""
        if self._part is not None:
            self._part.discard()

    def _fetch_slice(self, part: Slice, buffer: np.ndarray, patience: Patience) -> int:
        pieces = deque(part.pieces)
        view = memoryview(buffer)
        filled = crc = 0  # bytes of the first piece that are in the buffer, and the sum of what came before it

        def room() -> memoryview:
            return view[filled : pieces[0].length]

        def attempt() -> None:
            nonlocal filled, crc
            # A slice that broke off goes on where it stopped.
            start = pieces[0].start + filled if pieces else part.end
            for num_bytes in self._source.stream(self.info, start, part.end - start, room, patience):
                filled += num_bytes
                self._progress.add(num_bytes)
                if filled == pieces[0].length:
                    crc = self._use(pieces.popleft(), buffer[:filled], crc)
                    filled = 0

        patience.try_often(attempt, self._source.uri, self.info.name)
        if part.length == 0:
            self._write(b"", part.start)
        return crc

    def _use(self, piece: Piece, data: np.ndarray, crc: int) -> int:
        self._write(memoryview(data), piece.start)
        if self._consumer is not None:
            self._consumer.take(piece, data)
        return crc32c.extend(crc, data) if self.info.crc32c else crc

    def _write(self, data: memoryview | bytes, offset: int) -> None:
        if self._part is None or self.part_error is not None:
            return
        try:
            self._part.write(data, offset)
        except (StorageFull, TransferFailed) as error:
            if self._consumer is None:
                raise
            self.part_error = error

    def _finish(self) -> None:
        if self.info.crc32c:
            crc = crc32c.extend(0, self._head)
            for index, piece in enumerate(self.slices):
                crc = crc32c.combine(crc, self._sums[index], piece.length)
            self.actual_sum = crc32c.to_text(crc)
        if self._part is not None and self.is_right:
            self._write(self._head, 0)
            self._put_in_place(self._part)

    def _put_in_place(self, part: PartFile) -> None:
        if self.part_error is not None:
            return
        try:
            self.file_sum = part.put_in_place()
        except (StorageFull, TransferFailed) as error:
            if self._consumer is None:
                raise
            self.part_error = error


def fetch_all(turns: Sequence[tuple[ObjectFetch, int]], patience: Patience) -> None:
    """Fetch slices in parallel, begun in this order; returns when all are there, right or wrong.

    Args:
        turns: each slice of each object once, as the object and the slice's number.
        patience: how long and how often; cancelled by the first failure.

    Raises:
        ObjectChanged: an object was overwritten or deleted since it was listed.
        StorageFull: the file system has no room left, and there is no consumer.
        TransferFailed: retries or deadline ran out.
    """
    pieces = (piece for fetch, index in turns for piece in fetch.slices[index].pieces)
    buffer_bytes = max((piece.length for piece in pieces), default=0)

    def begin() -> Callable[[tuple[ObjectFetch, int]], None]:
        buffer = np.empty(buffer_bytes, np.uint8)
        return lambda turn: turn[0].fetch(turn[1], buffer, patience)

    try:
        work_off(deque(turns), begin, max_threads=patience.limits.num_workers, cancel=patience.cancel)
    finally:
        for fetch in {id(fetch): fetch for fetch, _ in turns}.values():
            fetch.discard()
