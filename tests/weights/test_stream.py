"""Weights streamed from files of this machine and from a bucket: checked first, fetched in slices, placed in order."""

import itertools
import json
import os
import struct
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save

from service.checkpoint.load import LoadedWeights
from service.device.mesh import DeviceMesh
from service.errors import MalformedCheckpoint, TransferFailed
from service.models.weight_spec import TensorSource, WeightSpec
from service.observability.progress import Progress
from service.storage import open_files
from service.storage.location import parse_location
from service.storage.source import open_source
from service.weights import stream
from service.weights.stream import StreamedWeights, stream_weights
from tests.checkpoint.streamed import DTYPE, SHARDS, SPECS, TENSORS, Loader, made_at_once, same_weights
from tests.fault_proxy import Fault
from tests.gcs import GcsBucket

BF16 = np.dtype(ml_dtypes.bfloat16)


def streamed(folder: Path, specs: tuple[WeightSpec, ...] = SPECS, progress: Progress | None = None) -> StreamedWeights:
    source = open_source(parse_location(str(folder)), cache_root=folder / "cache")
    objects = source.list()
    progress = progress or Progress()
    with source.open_files(objects, objects, cache=None, progress=progress) as opened:
        return stream_weights(specs, opened, max_staging_bytes=2**20)


def plain(name: str, size: int) -> WeightSpec:
    return WeightSpec(name, ("a",), (size,), (TensorSource(name, (size,), (size,)),))


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


def file_of(header: dict[str, object], body: bytes) -> bytes:
    """Return a safetensors file with a header that the library would not write."""
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + body


@pytest.mark.parametrize("num_before", [1, 2, 3])
def test_tensors_may_begin_at_any_byte(tmp_path: Path, num_before: int):
    # The library aligns what it writes; the format does not ask for it.
    values = np.arange(10, dtype=np.float32)
    header = {
        "spare.rotary_emb.inv_freq": {"dtype": "U8", "shape": [num_before], "data_offsets": [0, num_before]},
        "w": {"dtype": "F32", "shape": [10], "data_offsets": [num_before, num_before + 40]},
    }
    content = file_of(header, b"x" * num_before + values.tobytes())
    result = streamed(write(tmp_path / "model", a=content), (plain("w", 10),))
    np.testing.assert_array_equal(result.weights["w"], values)


@pytest.mark.parametrize("names", list(itertools.permutations(["u", "empty.rotary_emb.inv_freq", "v"])), ids="-".join)
@pytest.mark.parametrize("position", [0, 4, 8])
def test_empty_tensors_hide_no_other_wherever_they_lie(tmp_path: Path, names: tuple[str, ...], position: int):
    entries = {
        "u": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
        "empty.rotary_emb.inv_freq": {"dtype": "F32", "shape": [0], "data_offsets": [position, position]},
        "v": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]},
    }
    content = file_of({name: entries[name] for name in names}, np.array([1, 2], np.float32).tobytes())
    result = streamed(write(tmp_path / "model", a=content), (plain("u", 1), plain("v", 1)))
    assert {name: weight.tolist() for name, weight in result.weights.items()} == {"u": [1], "v": [2]}


def test_nothing_is_read_of_tensors_that_are_not_the_models(tmp_path: Path):
    spec = plain("w", 4)
    for content, reason in (
        (save({"w": np.zeros(5, np.float32)}), r"w: has shape \[5\]"),
        (save({"v": np.zeros(4, np.float32)}), "w: is missing"),
        (save({"w": np.zeros(4, np.float32), "v": np.zeros(4, np.float32)}), "v: 1 tensors"),
        (save({"w": np.zeros(4, np.int8)}), "'w' is I8; supported types are"),
    ):
        progress = Progress()
        folder = write(tmp_path / "model", a=content)
        with pytest.raises(MalformedCheckpoint, match=reason) as caught:
            streamed(folder, (spec,), progress)
        assert caught.value.uri == str(folder)
        assert progress.bytes_done == 0


@pytest.mark.parametrize("second", [np.ones(4, np.float32), np.zeros(5, np.float32), np.zeros(4, np.float16)])
def test_unequal_tensors_of_one_name_are_refused(tmp_path: Path, second: np.ndarray):
    folder = write(tmp_path / "model", a=save({"w": np.zeros(4, np.float32)}), b=save({"w": second}))
    with pytest.raises(MalformedCheckpoint, match=r"w: .*'w' of a\.safetensors and 'w' of b\.safetensors") as caught:
        streamed(folder, (plain("w", 4),))
    assert caught.value.uri == str(folder)


def test_equal_tensors_of_one_name_are_read_once(tmp_path: Path):
    content = save({"w": np.arange(4, dtype=np.float32)})
    folder = write(tmp_path / "model", a=content, b=content)
    assert streamed(folder, (plain("w", 4),)).weights["w"].tolist() == [0, 1, 2, 3]


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


SIZE = 16 * 1024


@pytest.mark.parametrize(
    ("stored", "order"),
    [
        ({"a": ["1a", "2"], "b": ["1b"]}, [("a", 0), ("b", 0), ("a", 1)]),
        ({"a": ["1a", "2", "1b"]}, [("a", 0), ("a", 2), ("a", 1)]),
        ({"a": ["2"], "b": ["1a"], "c": ["1b"]}, [("a", 0), ("b", 0), ("c", 0)]),
    ],
    ids=["in two files", "around another", "one after another"],
)
def test_slices_come_in_an_order_that_completes_weight_after_weight(tmp_path: Path, monkeypatch, stored, order):
    parts = {name: np.full(SIZE, number, np.float32) for number, name in enumerate(("1a", "1b", "2"))}
    contents = {}
    for file, names in stored.items():
        header = {
            name: {"dtype": "F32", "shape": [SIZE], "data_offsets": [number * 4 * SIZE, (number + 1) * 4 * SIZE]}
            for number, name in enumerate(names)
        }
        contents[file] = file_of(header, b"".join(parts[name].tobytes() for name in names))
    folder = write(tmp_path / "model", **contents)
    halves = tuple(TensorSource(name, (SIZE,), (1, SIZE)) for name in ("1a", "1b"))
    specs = (
        WeightSpec("second", ("a",), (SIZE,), (TensorSource("2", (SIZE,), (SIZE,)),)),
        WeightSpec("first", ("a", "b"), (2, SIZE), halves),
    )
    reads: list[tuple[str, int]] = []
    preadv = os.preadv

    def record(descriptor: int, buffers: list[memoryview], start: int) -> int:
        reads.append((Path(f"/proc/self/fd/{descriptor}").readlink().stem, start // (4 * SIZE)))
        return preadv(descriptor, buffers, start)

    monkeypatch.setattr("os.preadv", record)
    limits = replace(open_files.FILE_LIMITS, num_workers=1, slice_bytes=4 * SIZE)
    monkeypatch.setattr(open_files, "FILE_LIMITS", limits)
    monkeypatch.setattr(stream, "MIN_SLICE_BYTES", 4 * SIZE)
    result = streamed(folder, specs)
    assert [weight.mean() for weight in result.weights.values()] == [2, 0.5]
    assert reads[len(stored) :] == order  # after the headers


MESH = DeviceMesh((jax.devices()[0],))
SLICES = r"model-0000.*alt=media.*bytes=[1-9]"


class AcceleratorMesh(DeviceMesh):
    """Stands for an accelerator, which this machine lacks: its arrays never use the host's memory."""

    @property
    def platform(self) -> str:
        return "gpu"

    def put(self, array: np.ndarray, axes: Sequence[str]) -> jax.Array:
        return jax.device_put(array.copy(), self.devices[0])


def to_the_device(
    loader: Loader,
    max_staging_bytes: int,
    cancelled: threading.Event | None = None,
    mesh: DeviceMesh = MESH,
    **limits,
):
    """Stream the checkpoint to a device whose memory is not the host's."""
    located = loader.locate(**limits)
    source, objects = located.weights.source, located.weights.objects
    chosen = [info for info in objects if info.name in SHARDS]
    with source.open_files(objects, chosen, cache=None, progress=Progress(), cancelled=cancelled) as opened:
        return stream_weights(SPECS, opened, mesh=mesh, max_staging_bytes=max_staging_bytes)


def test_slices_come_side_by_side_as_far_as_there_is_host_memory(loader: Loader, gcs_bucket: GcsBucket, monkeypatch):
    monkeypatch.setattr(stream, "MIN_SLICE_BYTES", 1000)
    together = threading.Barrier(4, timeout=10)
    gcs_bucket.faults([Fault(SLICES, times=4, before=together.wait)])
    result = to_the_device(loader, 2**26, num_workers=4, read_timeout_s=20.0)
    assert not together.broken
    assert all(isinstance(weight, jax.Array) for weight in result.weights.values())
    assert same_weights(LoadedWeights(result.weights))


def test_a_weight_that_is_larger_than_the_host_memory_is_loaded_all_the_same(loader: Loader, monkeypatch):
    monkeypatch.setattr(stream, "MIN_SLICE_BYTES", 1000)
    assert same_weights(LoadedWeights(to_the_device(loader, 0).weights))


# Buffers of chunks take 2 MiB a worker of it; what is left holds the weights one after another.
@pytest.mark.parametrize("staging_bytes", [2**22 + 2**13, 2**22 + 2**16, 2**24])
def test_weights_that_pass_through_one_region_are_the_same(loader: Loader, monkeypatch, staging_bytes: int):
    monkeypatch.setattr(stream, "MIN_SLICE_BYTES", 1000)
    result = to_the_device(loader, staging_bytes, mesh=AcceleratorMesh(MESH.devices), num_workers=2)
    assert same_weights(LoadedWeights(result.weights))


def test_a_cancelled_stream_does_not_wait_for_host_memory(loader: Loader, gcs_bucket: GcsBucket, monkeypatch):
    monkeypatch.setattr(stream, "MIN_SLICE_BYTES", 1000)
    cancelled = threading.Event()
    # One slice holds its memory for two seconds; the next one waits for it.
    soon = threading.Timer(0.5, cancelled.set)
    gcs_bucket.faults([Fault(SLICES, before=soon.start, stall_after_bytes=0, stall_s=20)])
    with pytest.raises(TransferFailed, match="was stopped") as caught:
        to_the_device(loader, 0, cancelled, num_workers=2, read_timeout_s=2.0)
    assert (caught.value.uri, caught.value.name) == (f"gs://{gcs_bucket.name}/llama", "weights")
