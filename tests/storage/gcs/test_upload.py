"""Uploads: in place of exactly the version that a listing saw, and refused with the permission that is missing."""

import time
from pathlib import Path

import psutil
import pytest

from service.errors import AccessDenied, TransferFailed
from service.storage.gcs.read import GcsSource
from service.storage.gcs.upload import GcsUploader
from service.storage.location import GcsLocation
from service.storage.objects import ObjectInfo
from tests.fault_proxy import Fault
from tests.gcs import GcsBucket
from tests.stored import quick_limits


def listing(bucket: GcsBucket, prefix: str = "model") -> dict[str, tuple[ObjectInfo, bytes]]:
    location = GcsLocation(bucket.name, prefix)
    with GcsSource(location, emulator_host=bucket.endpoint, limits=quick_limits()) as source:
        return {info.name: (info, source.read(info)) for info in source.list()}


@pytest.fixture
def uploader(gcs_bucket: GcsBucket):
    with GcsUploader(GcsLocation(gcs_bucket.name, "model"), emulator_host=gcs_bucket.endpoint) as uploader:
        yield uploader


def test_bytes_and_files_are_written_below_the_prefix(gcs_bucket: GcsBucket, uploader, tmp_path: Path):
    (tmp_path / "file").write_bytes(b"from a file")
    assert uploader.upload("a/b.bin", b"bytes", replaces=None)
    assert uploader.upload("c", tmp_path / "file", replaces=None)
    assert uploader.upload("empty", b"", replaces=None)
    contents = {name: data for name, (_, data) in listing(gcs_bucket).items()}
    assert contents == {"a/b.bin": b"bytes", "c": b"from a file", "empty": b""}


def test_without_a_prefix_objects_lie_at_the_top(gcs_bucket: GcsBucket):
    host = gcs_bucket.endpoint.removeprefix("http://")
    with GcsUploader(GcsLocation(gcs_bucket.name, ""), emulator_host=host) as uploader:
        assert uploader.upload("a", b"1", replaces=None)
    assert list(listing(gcs_bucket, prefix="")) == ["a"]


def test_an_object_is_replaced_only_in_the_version_that_was_seen(gcs_bucket: GcsBucket, uploader):
    assert uploader.upload("a", b"first", replaces=None)
    assert not uploader.upload("a", b"of one who saw none", replaces=None)
    seen, _ = listing(gcs_bucket)["a"]
    assert uploader.upload("a", b"second", replaces=seen)
    assert not uploader.upload("a", b"of one who saw the first", replaces=seen)
    assert listing(gcs_bucket)["a"][1] == b"second"


def test_a_missing_permission_is_named(gcs_bucket: GcsBucket, uploader):
    gcs_bucket.faults([Fault("/upload/", times=1000, status=403)])
    with pytest.raises(AccessDenied, match=r"HTTP 403, a may not be written.*storage\.objects\.create") as caught:
        uploader.upload("a", b"1", replaces=None)
    assert caught.value.uri == f"gs://{gcs_bucket.name}/model"


def test_any_other_refusal_names_the_object(gcs_bucket: GcsBucket, uploader):
    gcs_bucket.faults([Fault("/upload/", times=1000, status=400)])
    with pytest.raises(TransferFailed, match=r"it could not be written \(BadRequest\)") as caught:
        uploader.upload("a", b"1", replaces=None)
    assert (caught.value.uri, caught.value.name) == (f"gs://{gcs_bucket.name}/model", "a")


def test_a_file_that_is_gone_is_a_failed_transfer(uploader, tmp_path: Path):
    with pytest.raises(TransferFailed, match="FileNotFoundError"):
        uploader.upload("a", tmp_path / "nothing", replaces=None)


def test_an_upload_that_gets_no_answer_in_time_is_sent_again(gcs_bucket: GcsBucket, uploader, monkeypatch):
    monkeypatch.setattr("service.storage.gcs.upload.TIMEOUT_S", 0.5)
    gcs_bucket.faults([Fault("/upload/", stall_after_bytes=0, stall_s=60)])
    start_s = time.monotonic()
    uploader.upload("a", b"1", replaces=None)
    assert time.monotonic() - start_s < 30
    assert len(gcs_bucket.requests("/upload/")) >= 2
    assert listing(gcs_bucket)["a"][1] == b"1"


def test_no_connection_outlives_the_uploader(gcs_bucket: GcsBucket):
    server = int(gcs_bucket.endpoint.rpartition(":")[2])

    def ports() -> set[int]:
        found = psutil.Process().net_connections("tcp")
        return {one.laddr.port for one in found if one.status == "ESTABLISHED" and one.raddr.port == server}

    before = ports()
    location = GcsLocation(gcs_bucket.name, "model")
    with GcsUploader(location, emulator_host=gcs_bucket.endpoint) as uploader:
        uploader.upload("a", b"1", replaces=None)
        assert ports() - before
    assert not ports() - before


def test_no_credentials_is_an_error_with_the_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    with pytest.raises(AccessDenied, match="gs://bucket/model: no Google credentials"):
        GcsUploader(GcsLocation("bucket", "model"), emulator_host=None)
