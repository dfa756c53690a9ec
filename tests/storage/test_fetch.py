"""Objects fetched slice by slice: every byte comes once, is summed, and goes where it is wanted."""

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from service.errors import CorruptObject, StorageFull, TransferFailed
from service.observability.progress import Progress
from service.storage.fetch import FetchTask, ObjectFetch, fetch_all
from service.storage.files import PartFile
from service.storage.gcs.read import GcsSource
from service.storage.objects import Chunk, Extent, ObjectInfo, Slice, divide
from service.storage.retry import RetryBudget
from tests.fault_proxy import Fault
from tests.stored import WEIGHTS, Puller

NAME = "model.safetensors"
HEAD_BYTES = 100


class Recorder:
    """A consumer that keeps a copy of all bytes."""

    def __init__(self) -> None:
        self.reserved: list[Slice] = []
        self.chunks: dict[int, bytes] = {}

    @contextmanager
    def reserve(self, part: Slice, budget: RetryBudget) -> Iterator[None]:
        self.reserved.append(part)
        yield

    def pieces(self, chunk: Chunk, buffer: np.ndarray) -> Iterator[tuple[Chunk, np.ndarray]]:
        """The last third in memory of its own, the rest in the buffer."""
        border = chunk.end - chunk.num_bytes // 3
        yield Chunk(chunk.start, border), buffer[: border - chunk.start]
        yield Chunk(border, chunk.end), np.empty(chunk.end - border, np.uint8)

    def consume(self, chunk: Chunk, data: np.ndarray) -> None:
        assert chunk.start not in self.chunks
        assert (data.dtype, data.shape) == (np.uint8, (chunk.num_bytes,))
        self.chunks[chunk.start] = data.tobytes()


def slices_of(info: ObjectInfo, start: int = 0) -> Sequence[Slice]:
    return divide(start, [Extent(info.size_bytes - start, 1)], chunk_bytes=10_000, slice_bytes=64 * 1024)


def listed(source: GcsSource, name: str = NAME) -> ObjectInfo:
    return next(info for info in source.list() if info.name == name)


@contextmanager
def fetched(puller: Puller, folder: Path | None) -> Iterator[tuple[ObjectFetch, Recorder, Progress]]:
    """Fetch an object whose head has been read, for a consumer and, if there is a folder, a file."""
    recorder, progress = Recorder(), Progress()
    with puller.source() as source:
        info = listed(source)
        file = None if folder is None else PartFile(source.uri, info, folder)
        slices = slices_of(info, HEAD_BYTES)
        head = WEIGHTS[:HEAD_BYTES]
        fetch = ObjectFetch(source, info, slices, progress, head=head, file=file, consumer=recorder)
        fetch_all([FetchTask(fetch, index) for index in range(len(slices))], RetryBudget(source.limits))
        yield fetch, recorder, progress


def test_a_consumer_and_a_file_get_every_byte_once(puller: Puller, tmp_path: Path):
    with fetched(puller, tmp_path / "copies") as (fetch, recorder, progress):
        fetch.check()
        assert fetch.is_valid
        assert b"".join(recorder.chunks[start] for start in sorted(recorder.chunks)) == WEIGHTS[HEAD_BYTES:]
        assert sorted(part.start for part in recorder.reserved) == [part.start for part in fetch.slices]
        assert progress.bytes_done == len(WEIGHTS)
        assert (fetch.file_sum, fetch.disk_fault) == (fetch.info.crc32c, None)
    assert {path.name: path.read_bytes() for path in (tmp_path / "copies").iterdir()} == {NAME: WEIGHTS}


def test_a_wrong_object_is_no_file(puller: Puller, tmp_path: Path):
    puller.bucket.faults([Fault("alt=media", flipped_byte=5)])
    with fetched(puller, tmp_path / "copies") as (fetch, _, _):
        assert not fetch.is_valid
        assert fetch.file_sum is None
        with pytest.raises(CorruptObject) as caught:
            fetch.check()
    assert (caught.value.uri, caught.value.name) == (puller.bucket.uri("model"), NAME)
    assert (caught.value.expected, caught.value.actual) == (fetch.info.crc32c, fetch.actual_sum)
    assert list((tmp_path / "copies").iterdir()) == []


@pytest.mark.parametrize("call", ["os.pwrite", "os.fsync"])
def test_a_disk_that_fails_costs_a_consumer_nothing(puller: Puller, tmp_path: Path, monkeypatch, call: str):
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(call, fail)
    with fetched(puller, tmp_path / "copies") as (fetch, recorder, _):
        assert fetch.is_valid
        assert isinstance(fetch.disk_fault, StorageFull)
        assert fetch.file_sum is None
        assert sum(map(len, recorder.chunks.values())) == len(WEIGHTS) - HEAD_BYTES
    assert list((tmp_path / "copies").iterdir()) == []


def test_a_slice_of_a_cancelled_transfer_is_not_asked_for(puller: Puller):
    with puller.source() as source:
        info = listed(source, "config.json")
        budget = RetryBudget(source.limits)
        budget.cancel()
        puller.bucket.faults([])
        fetch = ObjectFetch(source, info, slices_of(info), Progress())
        with pytest.raises(TransferFailed, match="was stopped") as caught:
            fetch.fetch(0, np.empty(1024, np.uint8), budget)
    assert (caught.value.uri, caught.value.name) == (puller.bucket.uri("model"), "config.json")
    assert puller.bucket.requests() == []


def test_the_first_failure_ends_a_transfer_and_is_the_one_that_is_raised(puller: Puller):
    puller.bucket.faults([Fault("alt=media", times=1000, status=400)])
    with puller.source(num_workers=2) as source:
        info = listed(source)
        slices = slices_of(info)
        fetch = ObjectFetch(source, info, slices, Progress())
        with pytest.raises(TransferFailed, match="HTTP 400"):
            fetch_all([FetchTask(fetch, index) for index in range(len(slices))], RetryBudget(source.limits))
    assert len(puller.bucket.media_requests()) <= 2
