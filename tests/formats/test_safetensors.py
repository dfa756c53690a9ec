"""Headers that lie, files that are cut: each is one clear error, and nothing is mapped."""

import json
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from service.checkpoint.safetensors import TensorFiles, read_entries
from service.errors import MalformedCheckpoint

URI = "gs://bucket/model"


def write(path, header, body: bytes = b"") -> None:
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + body)


def entry(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_what_the_safetensors_library_writes_is_read(tmp_path, dtype):
    tensors = {
        "a": np.arange(6).reshape(2, 3).astype(dtype),
        "b": np.ones((4,), dtype),
        "none": np.zeros((0, 3), dtype),
    }
    save_file(tensors, tmp_path / "m.safetensors", metadata={"format": "pt"})
    read = TensorFiles(URI, [tmp_path / "m.safetensors"])
    assert set(read) == set(tensors)
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        np.testing.assert_array_equal(np.asarray(read[name]), tensor)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"abc", "too few for a safetensors header"),
        (struct.pack("<Q", 10**12) + b"{}", "claims a header of 1000000000000 bytes"),
        (struct.pack("<Q", 5) + b"nojso", "the header is no JSON"),
        (struct.pack("<Q", 2) + b"[]", "no JSON object"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path, content, reason):
    (tmp_path / "m.safetensors").write_bytes(content)
    with pytest.raises(MalformedCheckpoint, match=reason):
        read_entries(URI, tmp_path / "m.safetensors")


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"a": entry([2], 0, 12)}, "needs 8 bytes; the header gives it 12"),
        ({"a": entry([4], 0, 16)}, "describes .* bytes; the file has"),
        ({"a": entry([1], 0, 4), "b": entry([1], 0, 4), "c": entry([1], 4, 8)}, "gap or overlap"),
        ({"a": entry([1], 4, 8)}, "gap or overlap"),
        ({"a": entry([-2], 0, 8)}, "impossible numbers"),
        ({"a": entry([2], 8, 0)}, "impossible numbers"),
        ({"a": {"dtype": "F32"}}, "malformed"),
        ({"a": entry([2.0], 0, 8)}, "malformed"),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path, header, reason):
    write(tmp_path / "m.safetensors", header, bytes(8))
    with pytest.raises(MalformedCheckpoint, match=reason):
        read_entries(URI, tmp_path / "m.safetensors")


def test_a_type_that_is_not_served_is_refused_when_it_is_read(tmp_path):
    write(tmp_path / "m.safetensors", {"a": entry([8], 0, 8, dtype="F8_E4M3")}, bytes(8))
    with pytest.raises(MalformedCheckpoint, match="'a' is F8_E4M3; served are F32, F16, BF16"):
        TensorFiles(URI, [tmp_path / "m.safetensors"])["a"]


def test_a_tensor_in_two_files_is_refused(tmp_path):
    for name in ("1", "2"):
        save_file({"a": np.ones(2, np.float32)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(MalformedCheckpoint, match=r"'a' is in 1.safetensors too"):
        TensorFiles(URI, [tmp_path / "1.safetensors", tmp_path / "2.safetensors"])


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_damage_to_a_good_file_is_read_as_other_shapes(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("damage") / "m.safetensors"
    save_file({"a": np.arange(6, dtype=np.float32), "b": np.arange(4, dtype=np.float32)}, path)
    content = bytearray(path.read_bytes())
    header_end = 8 + struct.unpack("<Q", content[:8])[0]
    if data.draw(st.booleans()):
        content[data.draw(st.integers(0, header_end - 1))] = data.draw(st.integers(0, 255))
    else:
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    path.write_bytes(content)
    try:
        entries = read_entries(URI, path)
    except MalformedCheckpoint:
        return
    # Whatever still passes describes exactly the bytes that are there.
    assert sum(e.end - e.begin for e in entries.values()) == len(content) - header_end
