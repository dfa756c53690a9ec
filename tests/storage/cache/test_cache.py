"""The cache's entries are complete or invisible, never written in place, found again, and bounded."""

import errno
import gzip
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from service.errors import HostileName, MalformedCheckpoint, StorageFull, TransferFailed
from service.observability.progress import Progress
from service.storage.cache.cache import CacheUnusable, CheckpointCache
from service.storage.cache.entry import CacheEntry
from service.storage.files import try_lock
from service.storage.retry import RetryBudget
from tests.fault_proxy import Fault
from tests.sockets import wait_until
from tests.stored import FILES, WEIGHTS, Puller, contents


def test_a_pull_brings_every_file_and_leaves_nothing_else(puller: Puller):
    pulled = puller.pull()
    assert contents(pulled.path) == FILES
    assert {info.name for info in pulled.objects} == set(FILES)
    assert puller.visible() == [pulled.path]
    assert not list(puller.root.rglob("*.part"))
    assert pulled.path.name.startswith("model-")


def test_only_what_was_chosen_is_pulled(puller: Puller):
    with puller.source() as source:
        chosen = [info for info in source.list() if info.name == "config.json"]
        pulled = source.pull(chosen, puller.cache(), puller.progress)
    assert contents(pulled.path) == {"config.json": FILES["config.json"]}


def test_a_second_start_fetches_nothing(puller: Puller):
    first = puller.pull()
    puller.bucket.faults([])
    second = puller.pull()
    assert second.path == first.path
    assert not puller.bucket.media_requests()


def test_another_version_is_another_folder_and_the_old_one_stays(puller: Puller):
    first = puller.pull()
    puller.bucket.upload("model/model.safetensors", WEIGHTS[::-1])
    second = puller.pull()
    assert contents(first.path) == FILES
    assert contents(second.path)["model.safetensors"] == WEIGHTS[::-1]


def test_a_file_whose_bytes_changed_is_set_aside_and_pulled_again(puller: Puller, caplog: pytest.LogCaptureFixture):
    path = puller.pull().path
    damaged = bytearray(WEIGHTS)
    damaged[1000] ^= 1
    (path / "model.safetensors").write_bytes(damaged)
    (path / "config.json").unlink()
    puller.bucket.faults([])
    assert contents(puller.pull().path) == FILES
    assert not puller.bucket.requests("data%2Fone")
    assert (path.parent / f"{path.name}.corrupt" / "model.safetensors").read_bytes() == damaged
    assert "quarantined" in caplog.text


def test_a_change_that_keeps_the_stat_is_found_by_full_verification_alone(puller: Puller):
    path = puller.pull().path / "model.safetensors"
    status = path.stat()
    with path.open("r+b") as file:
        file.write(b"XXXX")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert contents(puller.pull().path) != FILES
    with puller.source() as source:
        pulled = source.pull(source.list(), puller.cache(verify_fully=True), puller.progress)
    assert contents(pulled.path) == FILES


def test_right_bytes_with_a_new_stat_are_kept_and_recorded_again(puller: Puller):
    path = puller.pull().path
    (path / "config.json").write_bytes(FILES["config.json"])
    before = (path / "COMPLETE.json").read_bytes()
    puller.bucket.faults([])
    puller.pull()
    assert not puller.bucket.media_requests()
    assert (path / "COMPLETE.json").read_bytes() != before


@pytest.mark.parametrize(
    "record", ["", "[]", '{"format_version": 99, "files": []}', '{"format_version": 1, "files": [{"info": {}}]}']
)
def test_a_damaged_or_foreign_record_counts_for_nothing(puller: Puller, record: str):
    path = puller.pull().path
    (path / "COMPLETE.json").write_text(record)
    puller.bucket.faults([])
    assert contents(puller.pull().path) == FILES
    assert not puller.bucket.media_requests()
    assert json.loads((path / "COMPLETE.json").read_text())["format_version"] == 1


def test_an_interrupted_pull_goes_on_with_what_is_missing_and_sums_what_is_there(puller: Puller):
    puller.bucket.faults([Fault("model.safetensors", times=1000, status=404)])
    with pytest.raises(Exception, match="overwritten or deleted"):
        puller.pull(num_workers=1)
    [folder] = puller.root.glob("checkpoints/*/")
    (folder / "config.json").write_bytes(b'{"model_type": "LLAMA"}')  # the same size, other bytes
    (folder / ".model.safetensors.1.abcd.part").write_bytes(b"left by a killed process")
    puller.bucket.faults([])
    assert contents(puller.pull().path) == FILES
    assert puller.bucket.requests("config.json")
    assert not puller.bucket.requests("data%2Fone")
    assert not list(puller.root.rglob("*.part"))


def test_empty_objects_and_folder_markers(puller: Puller):
    puller.bucket.upload("model/empty", b"")
    puller.bucket.upload("model/", b"")
    puller.bucket.upload("model/data/", b"")
    assert contents(puller.pull().path) == {**FILES, "empty": b""}


def test_an_object_stored_with_gzip_comes_unpacked(puller: Puller):
    text = b'{"packed": true}' * 1000
    puller.bucket.upload("model/tokenizer.json", gzip.compress(text), content_encoding="gzip")
    with puller.source() as source:
        packed = next(info for info in source.list() if info.name == "tokenizer.json")
        assert packed.content_encoding == "gzip"
        assert source.read(packed) == text
    assert contents(puller.pull().path) == {**FILES, "tokenizer.json": text}
    puller.bucket.faults([])
    puller.pull()
    assert not puller.bucket.media_requests()


@pytest.mark.parametrize(
    "stored",
    [b"no gzip", gzip.compress(b"x" * 5000)[:-9], gzip.compress(b"one") + b"two", gzip.compress(bytes(100_000_000))],
    ids=["foreign", "cut", "followed", "bomb"],
)
def test_an_object_that_does_not_unpack_is_refused(puller: Puller, stored: bytes):
    puller.bucket.upload("model/tokenizer.json", stored, content_encoding="gzip")
    with pytest.raises(MalformedCheckpoint) as caught:
        puller.pull()
    assert caught.value.file == "tokenizer.json"
    assert not puller.visible()
    assert not list(puller.root.rglob("*.part"))


def test_many_small_objects(puller: Puller):
    for index in range(100):
        puller.bucket.upload(f"model/many/{index}", b"%d" % index)
    pulled = contents(puller.pull().path)
    assert len(pulled) == 100 + len(FILES)
    assert pulled["many/99"] == b"99"


def version(puller: Puller, number: int) -> Puller:
    """The same bucket and cache with another checkpoint."""
    puller.bucket.upload(f"other-{number}/config.json", b"%d" % number)
    return Puller(puller.bucket, puller.root, prefix=f"other-{number}", max_checkpoints=puller.max_checkpoints)


def test_the_least_recently_used_go_first_and_one_in_use_never(puller: Puller):
    held = puller.pull()
    first, second, third = (version(puller, number) for number in range(3))
    first.pull().release()
    second.pull().release()  # the cache holds two, and the first of the three is in use
    assert set(puller.visible()) >= {held.path}
    assert len(puller.visible()) == 2
    third.pull().release()
    assert len(puller.visible()) == 2
    assert contents(held.path) == FILES
    held.release()
    held.release()
    first.pull().release()
    assert held.path not in puller.visible()
    names = {path.name for path in (puller.root / "checkpoints").iterdir()}
    assert not [name for name in names if name.startswith((held.path.name, ".trash"))]


def test_using_a_checkpoint_again_makes_it_the_last_to_go(puller: Puller):
    old = puller.pull()
    old.release()
    newer = version(puller, 1).pull()
    newer.release()
    puller.pull().release()
    version(puller, 2).pull().release()
    assert old.path in puller.visible()
    assert newer.path not in puller.visible()


def test_folders_that_are_not_the_caches_own_are_never_deleted(puller: Puller):
    foreign = puller.root / "checkpoints" / "mine"
    foreign.mkdir(parents=True)
    puller.max_checkpoints = 1
    puller.pull()
    version(puller, 1).pull()
    assert foreign.exists()


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_is_found_before_the_first_byte(puller: Puller):
    with mounted(puller.root, "size=1200k"):
        puller.bucket.faults([])
        with pytest.raises(StorageFull) as caught:
            puller.pull()
        assert not puller.bucket.media_requests()
        assert not puller.visible()
    assert caught.value.needed_bytes > caught.value.free_bytes > 0


def test_a_disk_that_fills_up_during_the_pull_is_named_and_a_later_start_succeeds(puller: Puller):
    with mounted(puller.root, "size=1500k"):
        filler = puller.root / "filler"
        puller.bucket.faults([Fault("alt=media", before=lambda: filler.write_bytes(bytes(1_400_000)))])
        with pytest.raises(StorageFull) as caught:
            puller.pull(num_workers=1)
        assert caught.value.free_bytes < len(WEIGHTS)
        assert not puller.visible()
        filler.unlink()
        puller.pull().release()


def test_a_disk_with_too_little_room_gives_up_older_checkpoints_first(puller: Puller):
    with mounted(puller.root, "size=1800k"):
        puller.max_checkpoints = 9
        old = puller.pull()
        old.release()
        puller.bucket.upload("model/model.safetensors", bytes(600_000))
        new = puller.pull()
        new.release()
        assert puller.visible() == [new.path]


def test_a_read_only_cache_is_read_and_what_it_lacks_goes_elsewhere(puller: Puller, caplog: pytest.LogCaptureFixture):
    with mounted(puller.root, "size=4m"):
        pulled = puller.pull()
        pulled.release()  # a file open for writing would keep the mount writable
        subprocess.run(["mount", "-o", "remount,ro", puller.root], check=True)
        puller.bucket.faults([])
        assert puller.pull().path == pulled.path
        assert not puller.bucket.media_requests()
        assert "private_folder" not in caplog.text
        elsewhere = version(puller, 1).pull()
        assert contents(elsewhere.path) == {"config.json": b"1"}
        assert not elsewhere.path.is_relative_to(puller.root)
        assert "cannot be written or locked" in caplog.text
        [facts] = [record for record in caplog.records if "cannot be written or locked" in record.message]
        assert (facts.cache, facts.reason) == (str(puller.root), os.strerror(errno.EROFS))
        assert elsewhere.path.is_relative_to(facts.private_folder)


def test_a_file_system_without_locks_is_not_shared(puller: Puller, monkeypatch: pytest.MonkeyPatch):
    def flock(descriptor: int, operation: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path.startswith(str(puller.root)):
            raise OSError(errno.ENOTSUP, "no locks here")

    monkeypatch.setattr("fcntl.flock", flock)
    pulled = puller.pull()
    assert contents(pulled.path) == FILES
    assert not pulled.path.is_relative_to(puller.root)


def test_a_cache_that_is_no_folder_is_a_clear_error(puller: Puller):
    puller.root.write_text("a file")
    with pytest.raises(TransferFailed, match="the cache failed") as caught:
        puller.pull()
    assert (caught.value.uri, caught.value.name) == (puller.bucket.uri("model"), str(puller.root))


def test_a_cancelled_pull_stops(puller: Puller):
    cancelled = threading.Event()
    puller.bucket.faults([Fault("alt=media", skip=1, before=cancelled.set)])
    with puller.source() as source, pytest.raises(TransferFailed, match="was stopped") as caught:
        source.pull(source.list(), puller.cache(), Progress(), cancelled)
    assert (caught.value.uri, caught.value.name in FILES) == (puller.bucket.uri("model"), True)
    assert not puller.visible()


def test_nothing_is_made_for_a_refused_pull(puller: Puller, tmp_path: Path):
    puller.bucket.upload("model/CONFIG.json", b"")
    cache = CheckpointCache(tmp_path / "new", max_checkpoints=1)
    with puller.source() as source, pytest.raises(HostileName):
        source.pull(source.list(), cache, Progress())
    assert not (tmp_path / "new").exists()


def test_folders_of_the_cache_are_this_users_alone(puller: Puller):
    path = puller.pull().path
    assert [folder.stat().st_mode & 0o777 for folder in (path, path.parent)] == [0o700, 0o700]
    assert {lock.stat().st_mode & 0o777 for lock in path.parent.glob("*.*e") if lock.is_file()} == {0o600}


def test_a_disk_that_is_full_for_the_record_is_named_with_what_all_files_need(puller: Puller, monkeypatch):
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr("service.storage.cache.entry.atomic_write", fail)
    with pytest.raises(StorageFull) as caught:
        puller.pull()
    assert caught.value.needed_bytes == sum(map(len, FILES.values())) + 1024 * 1024
    assert caught.value.free_bytes > 0
    assert f"under {puller.root / 'checkpoints'} " in str(caught.value)
    assert not puller.visible()


def test_a_cache_that_is_not_used_says_why(puller: Puller, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr("service.storage.cache.cache.wait_for_lock", fail)
    with puller.source() as source, pytest.raises(CacheUnusable, match=os.strerror(errno.ENOLCK)):
        puller.cache().open_entry(source, source.list(), RetryBudget(source.limits))


def test_what_is_cached_is_found_without_waiting(puller: Puller):
    with puller.source() as source:
        objects = source.list()
        assert puller.cache().find(source, objects) is None
        puller.pull().release()
        found = puller.cache().find(source, objects)
    assert found is not None
    assert contents(found.path) == FILES
    assert found.objects == tuple(objects)
    puller.max_checkpoints = 1
    version(puller, 1).pull().release()
    assert found.path in puller.visible()
    found.release()
    version(puller, 2).pull().release()
    assert found.path not in puller.visible()


def test_a_pull_that_did_not_fit_leaves_nothing_locked(puller: Puller, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as full:
        full.setattr("service.storage.cache.entry.free_bytes", lambda folder: 0)
        with pytest.raises(StorageFull):
            puller.pull()
    pulled = puller.pull(deadline_s=5)
    assert contents(pulled.path) == FILES
    pulled.release()
    puller.max_checkpoints = 1
    version(puller, 1).pull().release()
    assert pulled.path not in puller.visible()


def test_what_a_killed_eviction_left_goes_with_the_next_pull(puller: Puller):
    left = puller.root / "checkpoints" / ".trash-0123abcd"
    left.mkdir(parents=True)
    (left / "model.safetensors").write_bytes(b"half deleted")
    puller.pull()
    assert not left.exists()


def test_an_evicted_checkpoint_takes_its_quarantine_along(puller: Puller):
    puller.max_checkpoints = 1
    pulled = puller.pull()
    pulled.release()
    path = pulled.path
    (path / "config.json").write_bytes(b"damaged")
    puller.pull().release()
    quarantine = path.with_name(f"{path.name}.corrupt")
    assert (quarantine / "config.json").read_bytes() == b"damaged"
    version(puller, 1).pull().release()
    assert not path.exists()
    assert not quarantine.exists()


def test_files_in_quarantine_go_where_room_is_needed(puller: Puller):
    with mounted(puller.root, "size=2200k"):
        path = puller.pull().path
        quarantine = path.with_name(f"{path.name}.corrupt")
        quarantine.mkdir()
        (quarantine / "old").write_bytes(bytes(900_000))
        (path / "model.safetensors").unlink()
        assert contents(puller.pull().path) == FILES
        assert not quarantine.exists()


def test_an_entry_is_locked_while_it_is_open(puller: Puller):
    with puller.source(deadline_s=0.5) as source:
        objects = source.list()
        with puller.cache().open_entry(source, objects, RetryBudget(source.limits)):
            with pytest.raises(TransferFailed, match="waiting for another process") as caught:
                puller.cache().open_entry(source, objects, RetryBudget(source.limits))
            assert caught.value.uri == source.uri
        puller.cache().open_entry(source, objects, RetryBudget(source.limits)).abandon()


def test_whoever_waits_for_another_puller_logs_for_how_long(puller: Puller, monkeypatch, caplog):
    monkeypatch.setattr("service.storage.cache.cache.LOCK_LOG_INTERVAL_S", 0.0)
    caplog.set_level("INFO", "service.storage.cache.cache")
    with puller.source() as source:
        entry = CacheEntry.of(puller.root / "checkpoints", source.uri, source.list())
    entry.root.mkdir(parents=True)
    lock = try_lock(entry.pull_lock)
    assert lock is not None
    with ThreadPoolExecutor(1) as pool:
        try:
            pulling = pool.submit(puller.pull, deadline_s=120.0)
            wait_until(lambda: caplog.records)
        finally:
            lock.release()
        assert contents(pulling.result().path) == FILES
    waited, *_ = caplog.records
    assert "another process pulls" in waited.message
    assert 0 <= waited.waited_s < 60
