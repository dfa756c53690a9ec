"""Changes that several processes make to one object, in a folder and in a bucket alike."""

import fcntl
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from service.errors import CheckpointError
from service.storage import folder_store
from service.storage.folder_store import FolderStore
from service.storage.gcs.store import BucketStore
from service.storage.location import GcsLocation
from tests.fault_proxy import Fault

HOUR_S = 3600


@pytest.fixture(params=["folder", "bucket"])
def place(request, tmp_path):
    """A function that opens the same place anew, as another process would."""
    if request.param == "folder":
        return lambda **_: FolderStore(tmp_path / "place")
    bucket = request.getfixturevalue("gcs_bucket")
    location = GcsLocation(bucket.name, "some/place")
    return lambda **options: BucketStore(location, emulator_host=bucket.endpoint, **options)


def appended(text):
    """A change that leaves what it has made itself."""
    return lambda present: None if text in (present or b"") else (present or b"") + text


def test_no_update_undoes_another(place):
    num, store = 24, place()
    with ThreadPoolExecutor(4) as threads:
        stored = list(threads.map(lambda i: place().update("a/b", appended(b"<%d>" % i)), range(num)))
    final = store.read("a/b")
    assert sorted(final.decode().strip("<>").split("><"), key=int) == [str(i) for i in range(num)]
    assert sorted(stored, key=len)[-1] == final
    assert all(final.startswith(content) for content in stored)
    assert list(store.list("")) == ["a/b"]


def test_an_update_that_changes_nothing_writes_nothing(place):
    store = place()
    assert store.update("a", lambda present: None) is None
    assert store.read("a") is None
    assert store.update("a", lambda present: b"1") == b"1"
    assert store.update("a", lambda present: None) == b"1"


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
def test_a_clock_that_jumps_takes_no_claim(place, monkeypatch, jump_s):
    claim, now = place().claim("work"), time.time
    monkeypatch.setattr(time, "time", lambda: now() + jump_s)
    assert place().claim("work") is None
    assert claim.renew()
    claim.release()
    assert place().claim("work") is not None


@pytest.mark.slow
def test_a_write_whose_answer_was_lost_is_the_writers_own(gcs_bucket):
    store = BucketStore(GcsLocation(gcs_bucket.name, ""), emulator_host=gcs_bucket.endpoint)
    gcs_bucket.faults([Fault(match="^POST ", cut_after_bytes=0)])
    assert store.update("a", appended(b"1")) == b"1"
    gcs_bucket.faults([Fault(match="^POST ", cut_after_bytes=0)])
    assert store.claim("work").renew()
    assert gcs_bucket.hits()


def test_a_part_goes_once_it_is_old_and_its_writer_is_gone(tmp_path, monkeypatch):
    store = FolderStore(tmp_path)
    store.write("a/b", b"1")
    long_ago = time.time() - 2 * HOUR_S
    killed, living, young = [tmp_path / "a" / f".b.{i}.part" for i in range(3)]
    trash = tmp_path / ".c.1.part"
    (trash / "d").mkdir(parents=True)
    for part in (killed, living, young):
        part.write_bytes(b"half")
    for part in (killed, living, trash):
        os.utime(part, (long_ago, long_ago))
    with living.open("rb") as writing:
        fcntl.flock(writing, fcntl.LOCK_EX)
        store.sweep()
        assert [part.exists() for part in (killed, living, young, trash)] == [False, True, True, False]
    store.sweep()
    assert (living.exists(), store.read("a/b")) == (False, b"1")


def test_a_sweep_leaves_what_is_written_meanwhile_whatever_the_clock_says(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_store, "FORGET_PARTS_AFTER_S", -1)
    store, place_new = FolderStore(tmp_path), folder_store.sync

    def sweep_first(path):
        FolderStore(tmp_path).sweep()
        place_new(path)

    monkeypatch.setattr(folder_store, "sync", sweep_first)
    assert store.write("a/b", b"x" * 100_000)
    assert store.read("a/b") == b"x" * 100_000


def test_a_lock_that_is_never_given_back_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_store, "LOCK_TIMEOUT_S", 0.02)
    store = FolderStore(tmp_path)
    store.update("a", lambda present: b"1")
    with (tmp_path / ".lock").open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(OSError, match="locked"):
            store.update("a", lambda present: b"2")
    assert store.update("a", lambda present: b"2") == b"2"


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    store = FolderStore(tmp_path)
    store.update("a", lambda present: b"1")

    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder_store, "sync", full)
    for write in (lambda: store.update("a", lambda present: b"2"), lambda: store.write("b", b"2", replaces=False)):
        with pytest.raises(OSError, match="No space"):
            write()
    assert {path.name for path in tmp_path.iterdir()} == {"a", ".lock"}
    assert store.read("a") == b"1"


def test_a_bucket_that_others_write_all_the_time_is_an_error(gcs_bucket):
    store = BucketStore(GcsLocation(gcs_bucket.name, ""), emulator_host=gcs_bucket.endpoint)
    number = 0

    def behind(present):
        nonlocal number
        number += 1
        gcs_bucket.upload("a", b"%d" % number)
        return b"mine"

    with pytest.raises(CheckpointError, match="all the time"):
        store.update("a", behind)
