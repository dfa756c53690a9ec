"""Faults of a bucket and of the network during a pull: right bytes or a clear error, in bounded time."""

from pathlib import Path

import pytest

from service.errors import (
    AccessDenied,
    CheckpointNotFound,
    CorruptObject,
    ObjectChanged,
    TransferFailed,
)
from service.storage.gcs.read import GcsSource
from service.storage.location import GcsLocation
from service.storage.source import open_source
from tests.fault_proxy import Fault
from tests.stored import FILES, SLICE_BYTES, WEIGHTS, Puller, contents, quick_limits

SLICES = {"first": "bytes=0-", "middle": f"bytes={2 * SLICE_BYTES}-", "last": f"bytes={5 * SLICE_BYTES}-"}


def weights_slice(which: str) -> str:
    return f"model.safetensors.*alt=media.*{SLICES[which]}"


@pytest.mark.parametrize(
    "which", ["middle", pytest.param("first", marks=pytest.mark.slow), pytest.param("last", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "fault",
    [
        {"status": 503, "times": 3},
        {"status": 500, "times": 2},
        {"status": 408},
        {"is_reset": True, "times": 2},
        {"cut_after_bytes": 300, "times": 2},
        {"stall_after_bytes": 300, "stall_s": 1.5},
        {"flipped_byte": 300},
        {"has_wrong_hash": True},
        {"bytes_per_s": 500},
    ],
    ids="-".join,
)
def test_a_fault_that_passes_leaves_the_right_bytes(puller: Puller, which: str, fault: dict):
    puller.bucket.faults([Fault(weights_slice(which), **fault)])
    pulled = puller.pull()
    assert contents(pulled.path) == FILES
    assert puller.bucket.hits()
    assert puller.progress.bytes_done == puller.progress.bytes_total == sum(map(len, FILES.values()))


def test_a_slice_that_broke_off_goes_on_where_it_stopped(puller: Puller):
    puller.bucket.faults([Fault(weights_slice("first"), cut_after_bytes=300)])
    puller.pull()
    assert puller.bucket.requests(r"bytes=300-")


def test_a_retry_after_beyond_the_deadline_fails_at_once(puller: Puller):
    puller.bucket.faults([Fault("config.json", status=429, retry_after_s=3600)])
    with pytest.raises(TransferFailed, match="HTTP 429; gave up at attempt 1"):
        puller.pull(deadline_s=600.0)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"status": 503}, "HTTP 503; gave up at attempt 4"),
        ({"is_reset": True}, "the connection broke"),
        ({"stall_after_bytes": 0, "stall_s": 5}, "the read timed out"),
        ({"bytes_per_s": 200}, "bytes per second"),
    ],
)
def test_a_fault_that_stays_is_a_clear_error_in_bounded_time(puller: Puller, fault: dict, message: str):
    puller.bucket.faults([Fault("model.safetensors", skip=1, times=1000, **fault)])
    with pytest.raises(TransferFailed, match=message) as caught:
        puller.pull()
    assert caught.value.name == "model.safetensors"
    assert "http://" not in str(caught.value)
    assert not puller.visible()


@pytest.mark.timeout(60)
def test_the_deadline_holds_for_the_whole_pull(puller: Puller):
    puller.bucket.faults([Fault("alt=media", times=1000, bytes_per_s=20_000)])
    with pytest.raises(TransferFailed, match="PULL_TIMEOUT = 1 s"):
        puller.pull(deadline_s=1.0)


@pytest.mark.parametrize("which", SLICES)
def test_bytes_that_are_always_wrong_are_refused_with_both_sums(puller: Puller, which: str):
    puller.bucket.faults([Fault(weights_slice(which), times=1000, flipped_byte=5)])
    with pytest.raises(CorruptObject) as caught:
        puller.pull()
    assert caught.value.name == "model.safetensors"
    assert caught.value.expected != caught.value.actual
    assert len(puller.bucket.hits()) == 2
    assert not puller.visible()
    assert not list(puller.root.rglob("model.safetensors"))
    assert not list(puller.root.rglob("*.part"))


def test_a_small_file_is_read_again_when_its_bytes_are_wrong(puller: Puller):
    with puller.source() as source:
        config = next(info for info in source.list() if info.name == "config.json")
        puller.bucket.faults([Fault("config.json", flipped_byte=3)])
        assert source.read(config) == FILES["config.json"]
        puller.bucket.faults([Fault("config.json", times=2, flipped_byte=3)])
        with pytest.raises(CorruptObject):
            source.read(config)


@pytest.mark.parametrize("is_deleted", [True, False], ids=["deleted", "overwritten"])
def test_an_object_that_changes_before_the_pull_is_an_error_and_never_a_mix(puller: Puller, is_deleted: bool):
    def change() -> None:
        if is_deleted:
            puller.bucket.delete("model/model.safetensors")
        else:
            puller.bucket.upload("model/model.safetensors", WEIGHTS[::-1])

    with pytest.raises(ObjectChanged) as caught:
        puller.pull(before_pull=change)
    assert caught.value.name == "model.safetensors"
    assert not puller.visible()


def test_an_object_that_is_overwritten_amid_its_slices_is_an_error_and_never_a_mix(puller: Puller):
    def overwrite() -> None:
        puller.bucket.upload("model/model.safetensors", WEIGHTS[::-1])

    puller.bucket.faults([Fault(weights_slice("middle"), before=overwrite)])
    with pytest.raises(ObjectChanged):
        puller.pull(num_workers=1)
    assert not list(puller.root.rglob("model.safetensors"))


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_names_the_permission_and_the_remedy_and_is_not_tried_again(puller: Puller, status: int):
    puller.bucket.faults([Fault("/o\\?", times=1000, status=status)])
    with (
        puller.source() as source,
        pytest.raises(AccessDenied, match=r"storage\.objects\.list.*roles/storage\.objectViewer"),
    ):
        source.list()
    assert len(puller.bucket.hits()) == 1
    puller.bucket.faults([Fault("alt=media", times=1000, status=status)])
    with pytest.raises(AccessDenied, match=r"storage\.objects\.get is not allowed \(injected"):
        puller.pull()


def test_a_missing_bucket_and_an_empty_prefix_have_different_errors(puller: Puller):
    nowhere = GcsLocation("no-such-bucket", "model")
    with (
        GcsSource(nowhere, emulator_host=puller.bucket.endpoint, limits=quick_limits()) as source,
        pytest.raises(CheckpointNotFound, match="there is no bucket 'no-such-bucket'"),
    ):
        source.list()
    missing = Puller(puller.bucket, puller.root, prefix="nothing-here")
    with missing.source() as source, pytest.raises(CheckpointNotFound, match="no object lies below"):
        source.list()
    # A prefix is a folder: its beginning is another name.
    part = Puller(puller.bucket, puller.root, prefix="mod")
    with part.source() as source, pytest.raises(CheckpointNotFound, match="no object lies below"):
        source.list()


def test_no_credentials_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    location = GcsLocation("bucket", "model")
    with pytest.raises(AccessDenied, match=r"gcloud auth application-default login.*GOOGLE_APPLICATION_CREDENTIALS"):
        open_source(location, cache_root=tmp_path)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/no/such/key.json")
    with pytest.raises(AccessDenied, match=r"/no/such/key\.json was not found"):
        open_source(location, cache_root=tmp_path)


@pytest.mark.slow
def test_a_listing_of_several_pages_is_read_to_its_end(puller: Puller):
    # The server has a page of 1000, as the real one has.
    for index in range(1001):
        puller.bucket.upload(f"model/many/{index}", b"")
    with puller.source() as source:
        assert len(source.list()) == 1001 + len(FILES)


def test_a_listing_survives_faults_and_is_given_up_in_bounded_time(puller: Puller):
    puller.bucket.faults([Fault("/o\\?prefix", status=503), Fault("/o\\?prefix", cut_after_bytes=40)])
    with puller.source() as source:
        assert {info.name for info in source.list()} == set(FILES)
    puller.bucket.faults([Fault("/o\\?prefix", cut_after_bytes=40, times=1000)])
    with puller.source() as source, pytest.raises(TransferFailed, match=r"the connection broke \(IncompleteRead\)"):
        source.list()
    puller.bucket.faults([Fault("/o\\?prefix", status=503, times=1000)])
    with puller.source() as source, pytest.raises(TransferFailed, match="listing: HTTP 503"):
        source.list()
