"""A safetensors file whose tensors lie in other files, as the library of the format reads it."""

import io
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load, save

from service.observability.progress import Progress
from service.storage.location import parse_location
from service.storage.source import open_source
from service.weights.headers import read_headers
from service.weights.safetensors_file import SafetensorsFile, tensor_bytes

TENSORS = {
    "first.safetensors": {
        "bytes": np.arange(5, dtype=np.int8),
        "halves": np.arange(6, dtype=np.float16).reshape(2, 3),
        "empty": np.zeros((0, 4), np.float32),
    },
    "second.safetensors": {
        "rows": np.arange(12, dtype=np.float32).reshape(3, 4),
        "doubles": np.arange(3, dtype=np.float64),
        "scalar": np.array(7, np.int32),
        "longs": np.arange(3, dtype=np.int64),
        "shorts": np.arange(3, dtype=np.int16),
        "octets": np.arange(3, dtype=np.uint8),
        "flags": np.array([True, False]),
    },
}


@pytest.fixture
def opened(tmp_path: Path):
    """The headers' entries by name, each with its file, and the budget of reads."""
    for file, tensors in TENSORS.items():
        (tmp_path / file).write_bytes(save(tensors))
    source = open_source(parse_location(str(tmp_path)), cache_root=tmp_path / "cache")
    objects = source.list()
    with source.open_files(objects, objects, cache=None, progress=Progress()) as files:
        headers = read_headers(files.files, files.budget)
        yield {name: (h.file, entry) for h in headers for name, entry in h.entries.items()}, files.budget


def test_the_tensors_of_all_files_are_read_from_it(opened):
    file = SafetensorsFile(*opened)
    content = io.BufferedReader(file).read()
    assert len(content) == file.size_bytes
    found, expected = load(content), TENSORS["first.safetensors"] | TENSORS["second.safetensors"]
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        np.testing.assert_array_equal(found[name], tensor, strict=True)
    assert struct.unpack("<Q", content[:8])[0] % 8 == 0
    assert b'"__metadata__": {"format": "pt"}' in content


def test_any_part_of_it_is_read_by_its_position(opened):
    content = io.BufferedReader(SafetensorsFile(*opened)).read()
    file = io.BufferedReader(SafetensorsFile(*opened), 16)
    for first in range(0, len(content), 7):
        file.seek(first)
        assert file.read(30) == content[first : first + 30]
    file.seek(len(content))
    assert file.read(1) == b""


def test_a_tensor_that_is_transposed_where_it_lies_is_put_in_order(opened):
    entries, budget = opened
    source, entry = entries["rows"]
    strided = {name: (source, replace(entry, shape=(4, 3), strides=(1, 4))) for name in ("a", "b")}
    part = {"c": (source, replace(entry, shape=(3, 2), strides=(4, 1), end=entry.end - 8))}
    rows = TENSORS["second.safetensors"]["rows"]
    found = load(io.BufferedReader(SafetensorsFile(strided | part, budget), 8).read())
    for name in strided:
        np.testing.assert_array_equal(found[name], rows.T)
    np.testing.assert_array_equal(found["c"], rows[:, :2])
    assert tensor_bytes(part["c"][1]) == 24


def test_a_tensors_bytes_are_those_of_its_elements(opened):
    for name, (_, entry) in opened[0].items():
        assert tensor_bytes(entry) == (TENSORS["first.safetensors"] | TENSORS["second.safetensors"])[name].nbytes
