"""Reads of small pieces of a large file in few requests."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import override

from service.storage.objects import read_range
from service.storage.open_files import OpenFile
from service.storage.retry import RetryBudget
from service.storage.seekable import SeekableReader
from service.weights.pickled.values import PickleRefusal

# Reading a gap of this size between two pieces costs less than another round trip to a bucket.
JOINED_BYTES = 128 * 1024
MAX_BYTES = 64 * 1024 * 1024  # of all descriptions of tensors in one file


def read_pieces(file: OpenFile, pieces: Iterable[tuple[int, int]], budget: RetryBudget) -> Mapping[int, bytes]:
    """Read pieces in parallel and return them by offset; a piece past the end of the file is shorter.

    Args:
        file: the file.
        pieces: offset and length of each piece.
        budget: limits time and attempts.
    """
    ordered = sorted((start, min(start + size, file.info.size_bytes)) for start, size in pieces)
    spans: list[list[tuple[int, int]]] = []
    for start, end in ordered:
        if spans and start - spans[-1][-1][1] <= JOINED_BYTES:
            spans[-1].append((start, end))
        else:
            spans.append([(start, end)])

    def read(span: list[tuple[int, int]]) -> dict[int, bytes]:
        first, last = span[0][0], max(end for _, end in span)
        data = read_range(file.source, file.info, first, last - first, budget)
        return {start: data[start - first : end - first] for start, end in span}

    by_offset: dict[int, bytes] = {}
    with ThreadPoolExecutor(budget.limits.num_workers, thread_name_prefix="header") as pool:
        for part in pool.map(read, spans):
            by_offset |= part
    return by_offset


class PieceFile(SeekableReader):
    """A seekable stream over a remote file that caches the blocks it has read."""

    def __init__(self, file: OpenFile, budget: RetryBudget) -> None:
        super().__init__()
        self._file, self._budget, self.size_bytes = file, budget, file.info.size_bytes
        self._blocks: dict[int, bytes] = {}

    @override
    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Read within one block.

        Raises:
            PickleRefusal: the descriptions of tensors take more than MAX_BYTES.
        """
        number, begin = divmod(self._position, JOINED_BYTES)
        start = number * JOINED_BYTES
        if number not in self._blocks:
            if (len(self._blocks) + 1) * JOINED_BYTES > MAX_BYTES:
                raise PickleRefusal(f"describes its tensors in more than {MAX_BYTES} bytes.")
            length = max(0, min(JOINED_BYTES, self.size_bytes - start))
            self._blocks[number] = read_range(self._file.source, self._file.info, start, length, self._budget)
        part = self._blocks[number][begin : begin + len(buffer)]
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)
