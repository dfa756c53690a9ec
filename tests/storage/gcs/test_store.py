"""Objects of the service's own, in a folder and in a bucket alike."""

import gzip
import io
import os
from contextlib import nullcontext

import pytest

from service.errors import CorruptObject, HostileName, MalformedCheckpoint, SettingsError
from service.storage.folder_store import FolderStore
from service.storage.gcs.store import BucketStore
from service.storage.location import GcsLocation
from service.storage.store import Claim, ObjectStore, open_store
from tests.fault_proxy import Fault


@pytest.fixture(params=["folder", "bucket"])
def place(request, tmp_path):
    """A function that opens the same place anew, as another process would."""
    if request.param == "folder":
        return lambda **_: FolderStore(tmp_path / "place")
    bucket = request.getfixturevalue("gcs_bucket")
    location = GcsLocation(bucket.name, "some/place")
    return lambda **options: BucketStore(location, emulator_host=bucket.endpoint, **options)


def test_what_is_written_is_read_by_others_until_it_is_deleted(place):
    store = place()
    assert isinstance(store, ObjectStore)
    assert store.read("a/b/c") is None
    store.write("a/b/c", b"one")
    store.write("a/b/c", b"two")
    store.write("a/d", io.BytesIO(b"file"))
    assert place().read("a/b/c") == b"two"
    assert list(store.list("a")) == ["a/b/c", "a/d"]
    assert store.list("a")["a/b/c"] == 3
    assert list(store.list("a/b")) == ["a/b/c"]
    assert list(store.list("")) == ["a/b/c", "a/d"]
    assert store.list("nothing") == {}
    store.delete("a/b/c")
    store.delete("a/b/c")
    assert (place().read("a/b/c"), place().open("a/b/c")) == (None, None)
    store.write("a/e", b"1")
    store.delete_folder("a")
    store.delete_folder("a")
    assert store.list("") == {}


def test_a_new_object_is_written_once_unless_writers_may_replace_it(place, tmp_path):
    (tmp_path / "file").write_bytes(b"from a path")
    assert place().write("a/b", tmp_path / "file", replaces=False)
    for content in (b"from a path", b"other", tmp_path / "file"):
        assert not place().write("a/b", content, replaces=False)
    assert place().read("a/b") == b"from a path"
    assert place().write("a/b", b"other")
    assert place().write("a/b", b"other")
    assert (place().read("a/b"), (tmp_path / "file").read_bytes()) == (b"other", b"from a path")


@pytest.mark.parametrize("content", [b"", b"x" * (9 * 1024 * 1024)])
def test_a_large_object_is_opened_as_a_file_that_its_deletion_does_not_end(place, content):
    store = place()
    store.write("large", content)
    with store.open("large") as file:
        store.delete("large")
        assert file.read() == content


def test_a_copy_outlives_its_source(place):
    store = place()
    assert store.copy("none", "copy") is False
    store.write("source", b"1")
    assert store.copy("source", "folder/copy")
    store.write("source", b"2")
    store.delete("source")
    assert store.read("folder/copy") == b"1"
    store.write("source", b"3")
    assert store.copy("source", "folder/copy")
    assert store.read("folder/copy") == b"3"


def test_one_at_a_time_has_a_claim(place):
    claim = place().claim("work")
    assert isinstance(claim, Claim)
    assert place().claim("work") is None
    assert place().claim("other work") is not None
    assert claim.renew()
    claim.release()
    assert place().claim("work") is not None


@pytest.mark.parametrize("num_parts", [1, 70])
def test_objects_become_one_in_their_order_once(place, num_parts):
    store = place()
    names = [f"part-{i:02d}" for i in range(num_parts)]
    for name in names:
        store.write(name, f"{name}\n".encode())
    assert store.concatenate(names, "whole")
    assert store.read("whole").decode().split() == names
    if isinstance(store, FolderStore):  # the emulator of a bucket replaces what a composition must not
        assert not store.concatenate(names[:1], "whole")
    assert list(store.list("")) == [*names, "whole"]


def test_who_takes_the_place_of_a_killed_owner_has_its_claim_at_once(gcs_bucket):
    location = GcsLocation(gcs_bucket.name, "")
    killed = BucketStore(location, emulator_host=gcs_bucket.endpoint).claim("work", "shard 1")
    assert killed is not None
    assert BucketStore(location, emulator_host=gcs_bucket.endpoint).claim("work", "shard 2") is None
    assert BucketStore(location, emulator_host=gcs_bucket.endpoint).claim("work", "shard 1") is not None


def test_a_claim_on_a_bucket_ends_if_it_is_not_renewed(gcs_bucket):
    location = GcsLocation(gcs_bucket.name, "")
    lost = BucketStore(location, emulator_host=gcs_bucket.endpoint, claim_s=-1).claim("work")
    taken = BucketStore(location, emulator_host=gcs_bucket.endpoint).claim("work")
    assert taken is not None
    assert not lost.renew()
    lost.release()
    assert taken.renew()


def test_no_name_leads_out_of_a_folder(tmp_path):
    store = FolderStore(tmp_path / "place")
    for name in ("../out", "/etc/passwd", "a/../../out", "a//b", ""):
        with pytest.raises(HostileName):
            store.write(name, b"1")
    assert list(tmp_path.iterdir()) == []


def test_files_are_private_and_leftovers_of_a_kill_are_not_seen(tmp_path):
    store = FolderStore(tmp_path / "place")
    store.write("a/b", b"1")
    (tmp_path / "place" / "a" / ".b.1.part").write_bytes(b"half")
    assert list(store.list("")) == ["a/b"]
    assert os.stat(tmp_path / "place" / "a").st_mode & 0o077 == 0
    store.delete("a/b")
    assert store.list("") == {}


def test_an_address_that_cannot_be_written_is_refused_by_its_setting(tmp_path):
    assert open_store(str(tmp_path), "BATCH_URI", emulator_host=None).uri == str(tmp_path)
    assert open_store("gs://bucket/a", "BATCH_URI", emulator_host="127.0.0.1:1").uri == "gs://bucket/a"
    with pytest.raises(SettingsError, match="BATCH_URI"):
        open_store("hf://org/name", "BATCH_URI", emulator_host=None)


def test_a_new_object_is_written_without_a_listing_and_an_old_one_is_replaced(gcs_bucket):
    store = BucketStore(GcsLocation(gcs_bucket.name, "place"), emulator_host=gcs_bucket.endpoint)
    store.write("new", b"one")
    assert len(gcs_bucket.requests("upload")) == 1
    assert gcs_bucket.requests("prefix=") == []
    store.write("new", b"two")
    assert store.read("new") == b"two"
    assert gcs_bucket.requests("prefix=") == []


@pytest.mark.parametrize(("times", "error"), [(1, None), (2, CorruptObject)])
def test_bytes_that_came_wrong_twice_are_an_error(gcs_bucket, times, error):
    store = BucketStore(GcsLocation(gcs_bucket.name, "place"), emulator_host=gcs_bucket.endpoint)
    store.write("name", b"x" * 100)
    gcs_bucket.faults([Fault("alt=media", flipped_byte=40, times=times)])
    with nullcontext() if error is None else pytest.raises(error):
        assert store.read("name") == b"x" * 100
    assert len(gcs_bucket.media_requests()) == 2


@pytest.mark.parametrize("fault", [{"status": 503}, {"cut_after_bytes": 300}])
def test_a_broken_read_is_repeated(gcs_bucket, fault):
    store = BucketStore(GcsLocation(gcs_bucket.name, "place"), emulator_host=gcs_bucket.endpoint)
    store.write("name", b"x" * 1000)
    gcs_bucket.faults([Fault("alt=media", **fault)])
    assert store.read("name") == b"x" * 1000
    assert gcs_bucket.hits()


def test_an_object_stored_with_gzip_is_unpacked(gcs_bucket):
    gcs_bucket.upload("place/name", gzip.compress(b"unpacked"), content_encoding="gzip")
    store = BucketStore(GcsLocation(gcs_bucket.name, "place"), emulator_host=gcs_bucket.endpoint)
    assert store.read("name") == b"unpacked"


def test_an_object_too_large_for_memory_is_refused(gcs_bucket, monkeypatch):
    monkeypatch.setattr("service.storage.gcs.read.MAX_READ_BYTES", 10)
    store = BucketStore(GcsLocation(gcs_bucket.name, "place"), emulator_host=gcs_bucket.endpoint)
    store.write("name", b"x" * 11)
    with pytest.raises(MalformedCheckpoint, match="too many"):
        store.read("name")
