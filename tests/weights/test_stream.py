"""Weights streamed from files of this machine and from a bucket: checked first, fetched in slices, placed in order."""

import json
import os
import struct
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save

from service.errors import MalformedCheckpoint
from service.models.weight_spec import TensorSource, WeightSpec
from service.observability.progress import Progress
from service.storage import open_files
from service.storage.location import parse_location
from service.storage.source import open_source
from service.weights import stream
from service.weights.stream import StreamedWeights, WeightTarget, stream_weights
from tests.checkpoint.streamed import DTYPE, SHARDS, SPECS, TENSORS, Loader, made_at_once, same_weights
from tests.gcs import GcsBucket

BF16 = np.dtype(ml_dtypes.bfloat16)


def streamed(folder: Path, specs: tuple[WeightSpec, ...] = SPECS, progress: Progress | None = None) -> StreamedWeights:
    source = open_source(parse_location(str(folder)), cache_root=folder / "cache")
    objects = source.list()
    progress = progress or Progress()
    with source.open_files(objects, objects, cache=None, progress=progress) as opened:
        target = WeightTarget(specs, DTYPE, None, max_staging_bytes=2**20)
        return stream_weights(target, opened.files, progress, opened.budget)


def write(folder: Path, **files: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / f"{name}.safetensors").write_bytes(content)
    return folder


def test_every_weight_is_made_in_the_order_of_the_specs(tmp_path: Path):
    names = list(TENSORS)
    folder = write(
        tmp_path / "model",
        a=save({name: TENSORS[name] for name in names[::2]}),
        b=save({name: TENSORS[name] for name in names[1::2]}),
    )
    progress = Progress()
    result = streamed(folder, progress=progress)
    assert list(result.weights) == [spec.name for spec in SPECS]
    for spec in SPECS:
        np.testing.assert_array_equal(result.weights[spec.name], made_at_once(spec, TENSORS, DTYPE))
    assert (result.file_sums, result.disk_fault) == ({}, None)
    assert progress.bytes_total == sum(path.stat().st_size for path in folder.iterdir())


@pytest.mark.parametrize("num_before", [1, 2, 3])
def test_tensors_may_begin_at_any_byte(tmp_path: Path, num_before: int):
    # The library aligns what it writes; the format does not ask for it.
    values = np.arange(10, dtype=np.float32)
    header = {
        "spare.rotary_emb.inv_freq": {"dtype": "U8", "shape": [num_before], "data_offsets": [0, num_before]},
        "w": {"dtype": "F32", "shape": [10], "data_offsets": [num_before, num_before + 40]},
    }
    encoded = json.dumps(header).encode()
    content = struct.pack("<Q", len(encoded)) + encoded + b"x" * num_before + values.tobytes()
    spec = WeightSpec("w", ("a",), (10,), (TensorSource("w", (10,), (10,)),))
    result = streamed(write(tmp_path / "model", a=content), (spec,))
    np.testing.assert_array_equal(result.weights["w"], values)


def test_nothing_is_read_of_tensors_that_are_not_the_models(tmp_path: Path):
    spec = WeightSpec("w", ("a",), (4,), (TensorSource("w", (4,), (4,)),))
    for content, reason in (
        (save({"w": np.zeros(5, np.float32)}), r"w: has shape \[5\]"),
        (save({"v": np.zeros(4, np.float32)}), "w: is missing"),
        (save({"w": np.zeros(4, np.float32), "v": np.zeros(4, np.float32)}), "v: 1 tensors"),
        (save({"w": np.zeros(4, np.int8)}), "'w' is I8; served are"),
    ):
        progress = Progress()
        folder = write(tmp_path / "model", a=content)
        with pytest.raises(MalformedCheckpoint, match=reason) as caught:
            streamed(folder, (spec,), progress)
        assert caught.value.uri == str(folder)
        assert progress.bytes_done == 0


def test_a_tensor_in_two_files_is_refused(tmp_path: Path):
    content = save({"w": np.zeros(4, np.float32)})
    with pytest.raises(MalformedCheckpoint, match=r"b\.safetensors: 'w' is in a\.safetensors too"):
        streamed(write(tmp_path / "model", a=content, b=content), SPECS)


def lengths(bucket: GcsBucket, shard: str) -> list[int]:
    """Return the lengths of the ranges that were asked for, but for the header's."""
    ranges = [line.rpartition("bytes=")[2].split("-") for line in bucket.requests(f"{shard}.*alt=media")]
    return [int(last) + 1 - int(first) for first, last in ranges if first != "0"]


def test_objects_are_fetched_in_about_four_slices_for_each_worker(loader: Loader, gcs_bucket: GcsBucket, monkeypatch):
    monkeypatch.setattr(stream, "MIN_SLICE_BYTES", 1000)
    total_bytes = sum(info.size_bytes for info in loader.locate().weights.objects if info.name in SHARDS)
    gcs_bucket.faults([])
    assert same_weights(loader.load(is_cached=False, num_workers=2, slice_bytes=10**9))
    found = [length for shard in SHARDS for length in lengths(gcs_bucket, shard)]
    assert max(found) <= total_bytes // 8
    assert 8 <= len(found) <= 8 + 2 * len(SHARDS)
    gcs_bucket.faults([])
    assert same_weights(loader.load(is_cached=False, num_workers=2, slice_bytes=5000))
    assert max(length for shard in SHARDS for length in lengths(gcs_bucket, shard)) <= 5000


def test_a_slice_is_not_cut_smaller_than_it_pays(loader: Loader, gcs_bucket: GcsBucket):
    gcs_bucket.faults([])
    assert same_weights(loader.load(is_cached=False, num_workers=2, slice_bytes=10**9))
    assert [len(lengths(gcs_bucket, shard)) for shard in SHARDS] == [1, 1]


def test_slices_come_in_an_order_that_completes_weight_after_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    size = 16 * 1024
    parts = {name: np.full(size, number, np.float32) for number, name in enumerate(("1a", "1b", "2"))}
    folder = write(tmp_path / "model", a=save({"1a": parts["1a"], "2": parts["2"]}), b=save({"1b": parts["1b"]}))
    halves = tuple(TensorSource(name, (size,), (1, size)) for name in ("1a", "1b"))
    specs = (
        WeightSpec("second", ("a",), (size,), (TensorSource("2", (size,), (size,)),)),
        WeightSpec("first", ("a", "b"), (2, size), halves),
    )
    reads: list[tuple[str, int]] = []
    preadv = os.preadv

    def record(descriptor: int, buffers: list[memoryview], start: int) -> int:
        reads.append((Path(f"/proc/self/fd/{descriptor}").readlink().stem, start))
        return preadv(descriptor, buffers, start)

    monkeypatch.setattr("os.preadv", record)
    limits = replace(open_files.FILE_LIMITS, num_workers=1, slice_bytes=4 * size)
    monkeypatch.setattr(open_files, "FILE_LIMITS", limits)
    monkeypatch.setattr(stream, "MIN_SLICE_BYTES", 4 * size)
    result = streamed(folder, specs)
    assert [weight.mean() for weight in result.weights.values()] == [2, 0.5]
    assert [file for file, start in reads if start] == ["a", "b", "a"]
