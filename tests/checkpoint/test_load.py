"""Weights streamed from a bucket to the device: right ones in bounded time, or one clear error and no weights."""

import gzip
import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from service.checkpoint.discover import locate
from service.checkpoint.tokenizer_files import pull_tokenizer
from service.errors import (
    AccessDenied,
    CorruptObject,
    MalformedCheckpoint,
    ObjectChanged,
    TransferFailed,
)
from service.storage.local import LocalSource
from tests.checkpoint.streamed import OBJECTS, SHARDS, Loader, same_weights
from tests.fault_proxy import Fault
from tests.gcs import GcsBucket
from tests.storage.cache.test_cache import mounted
from tests.stored import contents

# The requests for one object are its header and then its slices; `skip` counts from the header.
WHICH = {"header": 0, "first slice": 1, "middle slice": 2, "last slice": 3}
WEIGHTS_BYTES = len(OBJECTS[SHARDS[0]]) + len(OBJECTS[SHARDS[1]])


def fault(which: str, **what) -> Fault:
    return Fault(f"{SHARDS[0]}.*alt=media", skip=WHICH[which], **what)


def test_weights_are_right_and_every_file_is_cached_after_one_reading(loader: Loader, gcs_bucket: GcsBucket):
    gcs_bucket.faults([])
    loaded = loader.load()
    assert same_weights(loaded)
    [folder] = loader.visible()
    assert contents(folder) == OBJECTS
    assert loader.progress.bytes_done == loader.progress.bytes_total == sum(map(len, OBJECTS.values()))
    for name in SHARDS:
        starts = [int(line.rpartition("bytes=")[2].split("-")[0]) for line in gcs_bucket.requests(f"{name}.*alt=media")]
        assert len(starts) == len(set(starts))  # the header once, each slice once
    gcs_bucket.faults([])
    assert same_weights(loader.load())
    assert not gcs_bucket.requests(f"{SHARDS[0]}.*alt=media|{SHARDS[1]}.*alt=media")


def test_without_a_cache_nothing_is_written(loader: Loader):
    loaded = loader.load(is_cached=False)
    assert same_weights(loaded)
    assert not loader.root.exists()
    assert loader.progress.bytes_done == loader.progress.bytes_total == WEIGHTS_BYTES


def test_a_folder_of_this_machine_is_loaded_the_same_way(tmp_path: Path, loader: Loader):
    for name, data in OBJECTS.items():
        (tmp_path / name).write_bytes(data)
    assert same_weights(loader.load_located(locate(str(tmp_path), LocalSource)))
    assert loader.progress.bytes_done == WEIGHTS_BYTES


@pytest.mark.parametrize(
    ("which", "is_cached"),
    [
        pytest.param("middle slice", True, id="middle slice, kept"),
        pytest.param("header", False, id="header, past the cache"),
        pytest.param("middle slice", False, id="middle slice, past the cache", marks=pytest.mark.slow),
        pytest.param("header", True, id="header, kept", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "what",
    [
        {"status": 503, "times": 3},
        {"status": 429, "times": 2},
        {"status": 500, "times": 2},
        {"is_reset": True, "times": 2},
        {"cut_after_bytes": 300, "times": 2},
        {"stall_after_bytes": 300, "stall_s": 1.5},
        {"flipped_byte": 300},
        {"has_wrong_hash": True},
        {"bytes_per_s": 500},
    ],
    ids="-".join,
)
def test_a_fault_that_passes_leaves_the_right_weights(
    loader: Loader, gcs_bucket: GcsBucket, which: str, what: dict, is_cached: bool
):
    gcs_bucket.faults([fault(which, **what)])
    assert same_weights(loader.load(is_cached=is_cached))
    assert gcs_bucket.hits()
    if is_cached:
        assert contents(loader.visible()[0]) == OBJECTS


@pytest.mark.parametrize(
    "flipped", [0, 111, *(pytest.param(byte, marks=pytest.mark.slow) for byte in range(37, 400, 37) if byte != 111)]
)
def test_a_header_that_came_wrong_is_read_again_wherever_the_bit_is(
    loader: Loader, gcs_bucket: GcsBucket, caplog: pytest.LogCaptureFixture, flipped: int
):
    gcs_bucket.faults([fault("header", flipped_byte=flipped)])
    assert same_weights(loader.load(is_cached=False))
    assert gcs_bucket.hits()
    assert any("reading the headers again" in message or "fetching again" in message for message in caplog.messages)


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({"status": 503}, "HTTP 503; gave up at attempt 4"),
        ({"is_reset": True}, "the connection broke"),
        ({"stall_after_bytes": 0, "stall_s": 5}, "the read timed out"),
        ({"bytes_per_s": 200}, "bytes per second"),
    ],
)
def test_a_fault_that_stays_is_a_clear_error_in_bounded_time(
    loader: Loader, gcs_bucket: GcsBucket, what: dict, message: str
):
    gcs_bucket.faults([fault("first slice", times=1000, **what)])
    with pytest.raises(TransferFailed, match=message) as caught:
        loader.load()
    assert caught.value.name == SHARDS[0]
    assert not loader.visible()


@pytest.mark.parametrize("is_cached", [True, False], ids=["kept", "past the cache"])
def test_weights_that_are_stored_with_gzip_come_unpacked(loader: Loader, gcs_bucket: GcsBucket, is_cached: bool):
    gcs_bucket.upload(f"llama/{SHARDS[0]}", gzip.compress(OBJECTS[SHARDS[0]]), content_encoding="gzip")
    assert same_weights(loader.load(is_cached=is_cached))
    assert [contents(folder) for folder in loader.visible()] == ([OBJECTS] if is_cached else [])
    if is_cached:
        gcs_bucket.faults([])
        assert same_weights(loader.load())
        assert not gcs_bucket.requests(r"safetensors\?alt=media")


def test_weights_that_claim_gzip_and_are_not_are_refused(loader: Loader, gcs_bucket: GcsBucket):
    gcs_bucket.upload(f"llama/{SHARDS[0]}", OBJECTS[SHARDS[0]], content_encoding="gzip")
    with pytest.raises(MalformedCheckpoint, match="is stored as gzip and is not a gzip stream"):
        loader.load()
    assert not loader.visible()


@pytest.mark.timeout(60)
def test_the_deadline_holds_for_the_whole_stream(loader: Loader, gcs_bucket: GcsBucket):
    gcs_bucket.faults([Fault(r"safetensors\?alt=media", times=1000, bytes_per_s=20_000)])
    with pytest.raises(TransferFailed, match="PULL_TIMEOUT = 1 s"):
        loader.load(deadline_s=1.0)


@pytest.mark.parametrize("is_cached", [True, False], ids=["kept", "past the cache"])
def test_bytes_that_are_always_wrong_are_refused_with_both_sums(loader: Loader, gcs_bucket: GcsBucket, is_cached: bool):
    slice_start = sorted(_starts(loader, gcs_bucket))[2]
    gcs_bucket.faults([Fault(f"{SHARDS[0]}.*bytes={slice_start}-", times=1000, flipped_byte=5)])
    with pytest.raises(CorruptObject) as caught:
        loader.load(is_cached=is_cached)
    assert caught.value.name == SHARDS[0]
    assert caught.value.expected != caught.value.actual
    assert len(gcs_bucket.hits()) == 2
    assert not loader.visible()
    assert not list(loader.root.rglob(SHARDS[0]))
    assert not list(loader.root.rglob("*.part"))


def _starts(loader: Loader, bucket: GcsBucket) -> list[int]:
    bucket.faults([])
    loader.load(is_cached=False)
    lines = bucket.requests(f"{SHARDS[0]}.*alt=media")
    return [int(line.rpartition("bytes=")[2].split("-")[0]) for line in lines]


def test_only_what_a_wrong_object_touches_comes_again(loader: Loader, gcs_bucket: GcsBucket):
    unused = "model.layers.0.rotary_emb.inv_freq"
    weight_map = {"a": SHARDS[0], "b": SHARDS[1], unused: "extra.safetensors"}
    gcs_bucket.upload("llama/model.safetensors.index.json", json.dumps({"weight_map": weight_map}).encode())
    gcs_bucket.upload("llama/extra.safetensors", save({unused: np.zeros(9000, np.float32)}))
    gcs_bucket.faults([fault("last slice", flipped_byte=5)])
    assert same_weights(loader.load(is_cached=False))
    assert len(gcs_bucket.requests("extra.safetensors.*alt=media")) == 4  # the header twice, its two slices once


def test_what_comes_again_is_logged_and_a_right_copy_is_not_written_again(
    loader: Loader, gcs_bucket: GcsBucket, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    written: list[str] = []
    reserve = os.posix_fallocate

    def record(descriptor: int, offset: int, num_bytes: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        written.append(next(shard for shard in (*SHARDS, name) if shard in name))
        reserve(descriptor, offset, num_bytes)

    monkeypatch.setattr("os.posix_fallocate", record)
    gcs_bucket.faults([fault("last slice", flipped_byte=5)])
    loaded = loader.load()
    assert same_weights(loaded)
    [record_of_wrong] = [record for record in caplog.records if "fetching again" in record.message]
    assert record_of_wrong.objects == [SHARDS[0]]
    # Both objects come again, since a weight is made of tensors of both.
    assert [written.count(shard) for shard in SHARDS] == [2, 1]
    assert contents(loader.visible()[0]) == OBJECTS


def test_an_object_that_is_overwritten_amid_its_slices_is_an_error_and_never_a_mix(
    loader: Loader, gcs_bucket: GcsBucket
):
    def overwrite() -> None:
        gcs_bucket.upload(f"llama/{SHARDS[0]}", OBJECTS[SHARDS[0]][::-1])

    gcs_bucket.faults([fault("middle slice", before=overwrite)])
    with pytest.raises(ObjectChanged) as caught:
        loader.load(num_workers=1)
    assert caught.value.name == SHARDS[0]
    assert not loader.visible()


def test_an_object_that_is_gone_before_the_stream_is_an_error(loader: Loader, gcs_bucket: GcsBucket):
    with pytest.raises(ObjectChanged):
        loader.load(before_load=lambda: gcs_bucket.delete(f"llama/{SHARDS[1]}"))


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_is_not_tried_again(loader: Loader, gcs_bucket: GcsBucket, status: int):
    gcs_bucket.faults([fault("first slice", times=1000, status=status)])
    with pytest.raises(AccessDenied, match=r"storage\.objects\.get is not allowed"):
        loader.load(num_workers=1)
    assert len(gcs_bucket.hits()) == 1


def test_a_cancelled_stream_stops(loader: Loader, gcs_bucket: GcsBucket):
    cancelled = threading.Event()
    gcs_bucket.faults([fault("first slice", before=cancelled.set)])
    with pytest.raises(TransferFailed, match="was stopped"):
        loader.load(cancelled=cancelled)


def test_a_disk_that_is_too_small_costs_the_cache_and_not_the_start(loader: Loader, caplog: pytest.LogCaptureFixture):
    with mounted(loader.root, "size=200k"):
        assert same_weights(loader.load())
        assert not loader.visible()
    assert "streaming its weights" in caplog.text


def test_a_disk_that_fills_up_during_the_stream_costs_the_cache_and_not_the_start(
    loader: Loader, gcs_bucket: GcsBucket, caplog: pytest.LogCaptureFixture
):
    with mounted(loader.root, "size=2m"):
        filler = loader.root / "filler"
        gcs_bucket.faults([fault("header", before=lambda: filler.write_bytes(bytes(1_900_000)))])
        assert same_weights(loader.load())
        assert not loader.visible()
        assert not list(loader.root.rglob("*.part"))
    assert "streaming its weights" in caplog.text


def test_a_read_only_cache_is_read_and_what_it_lacks_streams_past_it(loader: Loader, gcs_bucket: GcsBucket):
    import subprocess

    with mounted(loader.root, "size=4m"):
        loader.load().release()
        subprocess.run(["mount", "-o", "remount,ro", loader.root], check=True)
        gcs_bucket.faults([])
        assert same_weights(loader.load())
        assert not gcs_bucket.requests(r"safetensors\?alt=media")
        gcs_bucket.upload("llama/config.json", OBJECTS["config.json"] + b" ")  # another version
        assert same_weights(loader.load())
        assert gcs_bucket.requests(r"safetensors\?alt=media")


def test_an_interrupted_stream_goes_on_with_what_is_missing(loader: Loader, gcs_bucket: GcsBucket):
    gcs_bucket.faults([Fault(f"{SHARDS[1]}.*alt=media", skip=1, times=1000, status=404)])
    with pytest.raises(ObjectChanged):
        loader.load(num_workers=1)
    assert list(loader.root.rglob(SHARDS[0]))
    gcs_bucket.faults([])
    assert same_weights(loader.load())
    assert not gcs_bucket.requests(f"{SHARDS[0]}.*alt=media")
    assert contents(loader.visible()[0]) == OBJECTS


def test_the_tokenizer_does_not_wait_for_the_weights_and_comes_from_the_cache_afterwards(
    loader: Loader, gcs_bucket: GcsBucket
):
    located = loader.locate()
    pulled = pull_tokenizer(located, loader.cache(), loader.progress)
    assert (pulled.path / "tokenizer.json").read_bytes() == OBJECTS["tokenizer.json"]
    assert not pulled.path.is_relative_to(loader.root)
    loader.load().release()
    gcs_bucket.faults([])
    kept = pull_tokenizer(located, loader.cache(), loader.progress)
    assert kept.path in loader.visible()
    assert not gcs_bucket.media_requests()
    kept.release()
