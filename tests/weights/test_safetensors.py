"""Headers that lie, files that are cut: each is one clear error."""

import json
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from service.errors import MalformedCheckpoint
from service.models.stored.layers import StoredTensor
from service.weights.headers import check_dtype, merged
from service.weights.safetensors import DTYPES, TensorEntry, header_size, parse_header

URI = "gs://bucket/model"


def written(header, body: bytes = b"") -> bytes:
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded + body


def entries_of(content: bytes, file: str = "m.safetensors") -> dict[str, TensorEntry]:
    header = content[: header_size(URI, file, content[:8], len(content))]
    return parse_header(URI, file, header, len(content))


def entry(shape, begin, end, dtype="F32"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_what_the_safetensors_library_writes_is_read(dtype):
    tensors = {
        "a": np.arange(6).reshape(2, 3).astype(dtype),
        "b": np.ones((4,), dtype),
        "none": np.zeros((0, 3), dtype),
    }
    content = save(tensors, metadata={"format": "pt"})
    entries = entries_of(content)
    assert set(entries) == set(tensors)
    for name, tensor in tensors.items():
        read = np.frombuffer(content[entries[name].begin : entries[name].end], DTYPES[entries[name].dtype_name])
        assert read.dtype == tensor.dtype
        np.testing.assert_array_equal(read.reshape(entries[name].shape), tensor)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"abc", "too few for a safetensors header"),
        (struct.pack("<Q", 10**12) + b"{}", "claims a header of 1000000000000 bytes"),
        (struct.pack("<Q", 5) + b"nojso", "the header is not JSON"),
        (struct.pack("<Q", 2) + b"[]", "not a JSON object"),
    ],
)
def test_a_file_that_is_none_is_refused(content, reason):
    with pytest.raises(MalformedCheckpoint, match=reason) as caught:
        entries_of(content)
    assert caught.value.uri == URI


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
        ({"a": entry([2.0], 0, 8)}, "impossible numbers"),
    ],
)
def test_a_header_that_lies_is_refused(header, reason):
    with pytest.raises(MalformedCheckpoint, match=reason):
        entries_of(written(header, bytes(8)))


def test_a_type_that_is_not_served_is_refused_when_it_is_asked_for():
    entries = entries_of(written({"a": entry([8], 0, 8, dtype="F8_E4M3")}, bytes(8)))
    with pytest.raises(MalformedCheckpoint, match="'a' is F8_E4M3; supported types are F32, F16, BF16"):
        check_dtype(URI, StoredTensor("a", (8,)), entries["a"])


def test_a_tensor_in_two_files_is_refused():
    content = save({"a": np.ones(2, np.float32)})
    with pytest.raises(MalformedCheckpoint, match=r"'a' is in 1.safetensors too"):
        merged(URI, [entries_of(content, "1.safetensors"), entries_of(content, "2.safetensors")])


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_no_damage_to_a_good_file_is_read_as_other_shapes(data):
    content = bytearray(save({"a": np.arange(6, dtype=np.float32), "b": np.arange(4, dtype=np.float32)}))
    header_end = 8 + struct.unpack("<Q", content[:8])[0]
    if data.draw(st.booleans()):
        content[data.draw(st.integers(0, header_end - 1))] = data.draw(st.integers(0, 255))
    else:
        del content[data.draw(st.integers(0, len(content) - 1)) :]
    try:
        entries = entries_of(bytes(content))
    except MalformedCheckpoint:
        return
    # Whatever still passes describes exactly the bytes that are there.
    assert sum(e.end - e.begin for e in entries.values()) == len(content) - header_end
