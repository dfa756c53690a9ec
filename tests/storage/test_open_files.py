"""Files opened for one reading: from the bucket, from the cache or from a folder, with copies for the cache."""

import gzip
import os
import threading
import time
from pathlib import Path

import pytest

from service.errors import AccessDenied, ObjectChanged, StorageFull, TransferFailed
from service.observability.progress import Progress
from service.storage.cache.cache import PulledCheckpoint
from service.storage.location import parse_location
from service.storage.objects import ObjectInfo, read_range
from service.storage.open_files import FolderRanges, OpenFiles, open_pulled
from service.storage.retry import RetryBudget
from service.storage.source import open_source
from tests.fault_proxy import Fault
from tests.stored import FILES, WEIGHTS, Puller, contents, quick_limits

MODEL = "model.safetensors"


class Opened:
    """Opens the weights of the test's checkpoint, and reads them."""

    def __init__(self, puller: Puller, *, is_cached: bool = True, chosen: tuple[str, ...] = (MODEL,)) -> None:
        self.source = puller.source()
        self.objects = self.source.list()
        self.progress = Progress()
        self.opening = self.source.open_files(
            self.objects,
            [info for info in self.objects if info.name in chosen],
            cache=puller.cache() if is_cached else None,
            progress=self.progress,
        )

    def __enter__(self) -> OpenFiles:
        return self.opening.__enter__()

    def __exit__(self, *error: object) -> None:
        self.opening.__exit__(*error)
        self.source.close()


def read(opened: OpenFiles) -> dict[str, bytes]:
    return {
        file.info.name: read_range(file.source, file.info, 0, file.info.size_bytes, opened.budget)
        for file in opened.files
    }


def sums(opener: Opened) -> dict[str, str]:
    return {info.name: info.crc32c for info in opener.objects if info.name == MODEL}


def test_without_a_cache_the_bucket_is_read_and_nothing_is_written(puller: Puller):
    opener = Opened(puller, is_cached=False)
    with opener as opened:
        assert read(opened) == {MODEL: WEIGHTS}
        assert [(file.copy_to, bool(file.info.crc32c)) for file in opened.files] == [(None, True)]
        opened.cache_copies({}, None)
    assert opener.progress.bytes_total == len(WEIGHTS)
    assert not puller.root.exists()
    assert len(puller.bucket.requests("config.json")) == 0


def test_what_the_cache_lacks_is_read_from_the_bucket_and_kept_there_once_it_is_copied(puller: Puller):
    opener = Opened(puller)
    with opener as opened:
        [file] = opened.files
        assert read(opened) == {MODEL: WEIGHTS}
        # The others are in the cache already.
        assert contents(file.copy_to) == {name: data for name, data in FILES.items() if name != MODEL}
        assert puller.visible() == []
        (file.copy_to / MODEL).write_bytes(WEIGHTS)
        opened.cache_copies(sums(opener), None)
        assert puller.visible() == [file.copy_to]
        opened.release()
    assert opener.progress.bytes_total == sum(map(len, FILES.values()))
    puller.bucket.faults([])
    assert contents(puller.pull().path) == FILES
    assert not puller.bucket.media_requests()


def test_a_cached_checkpoint_is_read_from_the_disk_and_trusted(puller: Puller):
    puller.pull().release()
    puller.bucket.faults([])
    opener = Opened(puller)
    with opener as opened:
        assert read(opened) == {MODEL: WEIGHTS}
        assert [(file.copy_to, file.info.crc32c) for file in opened.files] == [(None, "")]
        opened.cache_copies({}, None)
    assert opener.progress.bytes_total == len(WEIGHTS)
    assert not puller.bucket.media_requests()


def test_open_files_are_not_evicted_until_they_are_released(puller: Puller):
    puller.max_checkpoints = 1
    puller.pull().release()
    with Opened(puller) as opened:
        puller.bucket.upload("other/config.json", b"1")
        other = Puller(puller.bucket, puller.root, prefix="other", max_checkpoints=1)
        other.pull().release()
        assert read(opened) == {MODEL: WEIGHTS}
        assert len(puller.visible()) == 2
        opened.release()
        puller.bucket.upload("other/config.json", b"2")
        other.pull().release()
        assert len(puller.visible()) == 1


def test_files_whose_reading_fails_are_released(puller: Puller):
    puller.max_checkpoints = 1
    puller.pull().release()
    with pytest.raises(KeyError), Opened(puller):
        raise KeyError
    puller.bucket.upload("other/config.json", b"1")
    Puller(puller.bucket, puller.root, prefix="other", max_checkpoints=1).pull().release()
    assert len(puller.visible()) == 1


def test_an_interrupted_reading_leaves_the_entry_to_the_next(puller: Puller):
    with pytest.raises(KeyError), Opened(puller):
        raise KeyError
    assert puller.visible() == []
    assert contents(puller.pull().path) == FILES


def test_files_of_an_interrupted_pull_are_read_from_the_disk_with_their_sums(puller: Puller):
    puller.bucket.faults([Fault("data%2Fone", times=1000, status=404)])
    with pytest.raises(ObjectChanged):
        puller.pull(num_workers=1)
    puller.bucket.faults([])
    chosen = (MODEL, "data/one/0.0")
    opener = Opened(puller, chosen=chosen)
    with opener as opened:
        assert read(opened) == {name: FILES[name] for name in chosen}
        assert {file.info.name: file.copy_to is not None for file in opened.files}["data/one/0.0"]
    assert opener.progress.bytes_total >= len(FILES["data/one/0.0"])


@pytest.mark.parametrize(
    "fault",
    [StorageFull("gs://b", needed_bytes=2, free_bytes=1, path="/cache"), TransferFailed("gs://b", "a", "no disk")],
    ids=["full", "broken"],
)
def test_a_disk_that_fails_costs_the_copies_alone_and_is_logged(puller: Puller, caplog, fault: Exception):
    opener = Opened(puller)
    with opener as opened:
        assert read(opened) == {MODEL: WEIGHTS}
        opened.cache_copies({}, fault)
    assert puller.visible() == []
    assert "the checkpoint cannot be cached" in caplog.text
    assert caplog.records[-1].reason == str(fault)
    assert contents(puller.pull().path) == FILES


def test_a_cache_without_room_is_streamed_past_and_logged(puller: Puller, caplog, monkeypatch):
    monkeypatch.setattr("service.storage.cache.entry.free_bytes", lambda folder: 0)
    opener = Opened(puller)
    with opener as opened:
        assert read(opened) == {MODEL: WEIGHTS}
        assert [file.copy_to for file in opened.files] == [None]
    assert opener.progress.bytes_total == len(WEIGHTS)
    assert "streaming its weights" in caplog.text


def test_a_packed_file_is_pulled_and_read_unpacked(puller: Puller):
    text = b"text" * 5000
    puller.bucket.upload("model/tokenizer.json", gzip.compress(text), content_encoding="gzip")
    for is_cached in (True, False):
        opener = Opened(puller, is_cached=is_cached, chosen=("tokenizer.json",))
        with opener as opened:
            assert read(opened) == {"tokenizer.json": text}
            assert opened.files[0].info.size_bytes == len(text)
        assert opener.progress.bytes_done == opener.progress.bytes_total or is_cached
    assert len(puller.visible()) == 1


def test_a_cancelled_reading_stops(puller: Puller, tmp_path: Path):
    (tmp_path / "a").write_bytes(b"abc")
    cancelled = threading.Event()
    source = open_source(parse_location(str(tmp_path)), cache_root=tmp_path / "cache")
    objects = source.list()
    progress = Progress()
    with source.open_files(objects, objects, cache=None, progress=progress, cancelled=cancelled) as opened:
        assert read(opened) == {"a": b"abc"}
        cancelled.set()
        with pytest.raises(TransferFailed, match="was stopped"):
            read(opened)
    assert progress.bytes_total == 3
    with puller.source() as bucket:
        objects = bucket.list()
        for cache in (None, puller.cache()):
            with (
                pytest.raises(TransferFailed, match="was stopped"),
                bucket.open_files(objects, objects, cache=cache, progress=Progress(), cancelled=cancelled) as opened,
            ):
                read(opened)


def test_a_cancelled_reading_of_packed_files_stops(puller: Puller):
    puller.bucket.upload("model/tokenizer.json", gzip.compress(b"text"), content_encoding="gzip")
    cancelled = threading.Event()
    cancelled.set()
    with puller.source() as bucket:
        objects = bucket.list()
        with (
            pytest.raises(TransferFailed, match="was stopped"),
            bucket.open_files(objects, objects, cache=None, progress=Progress(), cancelled=cancelled),
        ):
            pass


def test_a_reading_past_a_full_cache_can_be_cancelled(puller: Puller, monkeypatch):
    monkeypatch.setattr("service.storage.cache.entry.free_bytes", lambda folder: 0)
    cancelled = threading.Event()
    with puller.source() as bucket:
        objects = bucket.list()
        with bucket.open_files(
            objects, objects, cache=puller.cache(), progress=Progress(), cancelled=cancelled
        ) as opened:
            assert read(opened) == FILES
            cancelled.set()
            with pytest.raises(TransferFailed, match="was stopped"):
                read(opened)


def test_the_log_says_whose_bytes_are_coming(puller: Puller, caplog, monkeypatch):
    monkeypatch.setattr("service.observability.progress.LOG_INTERVAL_S", 0.01)
    line = f"pulling {puller.bucket.uri('model')}"
    deadline_s = time.monotonic() + 30
    with caplog.at_level("INFO"), Opened(puller, is_cached=False):
        while line not in caplog.messages:
            assert time.monotonic() < deadline_s
            time.sleep(0.01)


def test_a_chosen_file_that_the_cache_has_already_is_read_there(puller: Puller):
    puller.bucket.faults([Fault("model.safetensors", times=1000, status=404)])
    with pytest.raises(ObjectChanged):
        puller.pull(num_workers=1)
    puller.bucket.faults([])
    with Opened(puller, chosen=("config.json", MODEL)) as opened:
        assert read(opened) == {name: FILES[name] for name in ("config.json", MODEL)}
        assert {file.info.name: file.copy_to is not None for file in opened.files} == {
            "config.json": False,
            MODEL: True,
        }
    assert not puller.bucket.requests("config.json")


def budget() -> RetryBudget:
    return RetryBudget(quick_limits())


def test_ranges_of_a_folders_files_are_read_to_the_byte(tmp_path: Path, monkeypatch):
    (tmp_path / "a").write_bytes(b"0123456789")
    info = ObjectInfo("a", 10, generation=7)
    with FolderRanges("/model", tmp_path) as folder:
        assert read_range(folder, info, 0, 10, budget()) == b"0123456789"
        assert read_range(folder, info, 3, 4, budget()) == b"3456"
        with folder.open_range(info, 2, 6, budget()) as reader:
            parts = [bytearray(2), bytearray(4)]
            for part in parts:
                reader.readinto(memoryview(part))
        assert parts == [b"23", b"4567"]
        preadv = os.preadv
        monkeypatch.setattr("os.preadv", lambda fd, buffers, at: preadv(fd, [buffers[0][:3]], at))
        assert read_range(folder, info, 1, 8, budget()) == b"12345678"
        # Open files are read on, whatever happens to their names.
        (tmp_path / "a").unlink()
        assert read_range(folder, info, 0, 2, budget()) == b"01"
        with pytest.raises(ObjectChanged) as cut:
            read_range(folder, info, 8, 5, budget())
    assert (cut.value.uri, cut.value.name, cut.value.generation) == ("/model", "a", 7)
    with pytest.raises(ObjectChanged) as gone, FolderRanges("/model", tmp_path) as folder:
        read_range(folder, info, 0, 2, budget())
    assert (gone.value.uri, gone.value.name, gone.value.generation) == ("/model", "a", 7)


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (PermissionError(13, "denied"), AccessDenied, "/model: a may not be read by this user"),
        (OSError(5, "Input/output error"), TransferFailed, "a: cannot be read: Input/output error"),
    ],
)
def test_a_disk_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch, error, kind, reason):
    def fail(*_: object) -> None:
        raise error

    (tmp_path / "a").write_bytes(b"0123456789")
    monkeypatch.setattr("os.preadv", fail)
    with FolderRanges("/model", tmp_path) as folder, pytest.raises(kind, match=reason) as caught:
        read_range(folder, ObjectInfo("a", 10), 0, 2, budget())
    assert caught.value.uri == "/model"


def test_pulled_files_are_released_where_the_reading_of_them_fails(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"abc")
    info = ObjectInfo("a", 3, crc32c="AAAAAA==")
    released: list[bool] = []
    pulled = PulledCheckpoint(tmp_path, (info,), lambda: released.append(True))
    with open_pulled("/model", pulled, [info], Progress(), None) as opened:
        assert read(opened) == {"a": b"abc"}
    assert released == []
    opened.release()
    assert released == [True]
    with pytest.raises(KeyError), open_pulled("/model", pulled, [info], Progress(), None):
        raise KeyError
    assert released == [True, True]
