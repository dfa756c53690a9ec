"""Objects of the service's own, in a folder and in a bucket alike."""

import io
import os

import pytest

from service.errors import HostileName, SettingsError
from service.storage.folder_store import FolderStore
from service.storage.gcs.store import BucketStore
from service.storage.location import GcsLocation
from service.storage.store import Claim, ObjectStore, open_store


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
