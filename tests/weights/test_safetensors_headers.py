"""Headers at the edge of what is taken, and how many bytes are read for them."""

import itertools
import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from service.errors import MalformedCheckpoint
from service.models.stored.layers import StoredTensor
from service.observability.progress import Progress
from service.storage.location import parse_location
from service.storage.retry import RetryBudget
from service.storage.source import open_source
from service.weights import safetensors
from service.weights.headers import check_dtype, merged, read_headers
from service.weights.safetensors import OTHER_BYTES, HeaderRoom, TensorEntry, header_size, parse_header
from tests.stored import quick_limits

URI, FILE = "gs://bucket/model", "m.safetensors"


def header_of(header: object, body_bytes: int) -> tuple[bytes, int]:
    """Return the bytes before the first tensor, and the size of the whole file."""
    encoded = json.dumps(header).encode()
    return struct.pack("<Q", len(encoded)) + encoded, 8 + len(encoded) + body_bytes


def entry(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def parsed(header: object, body_bytes: int) -> dict[str, TensorEntry]:
    return parse_header(URI, FILE, *header_of(header, body_bytes))


def test_a_header_may_fill_the_file_and_no_more():
    assert header_size(URI, FILE, struct.pack("<Q", 2), 10) == 10
    with pytest.raises(MalformedCheckpoint, match="claims a header of 2 bytes; the file has 9") as caught:
        header_size(URI, FILE, struct.pack("<Q", 2), 9)
    assert (caught.value.uri, caught.value.file) == (URI, FILE)


def test_a_header_may_have_a_hundred_million_bytes_and_no_more():
    assert header_size(URI, FILE, struct.pack("<Q", 10**8), 10**12) == 10**8 + 8
    with pytest.raises(MalformedCheckpoint, match="claims a header"):
        header_size(URI, FILE, struct.pack("<Q", 10**8 + 1), 10**12)


def test_headers_have_as_many_tensors_together_as_a_model_may_want():
    """They are counted before they are parsed, which takes most of a kilobyte for each."""
    room = HeaderRoom(10)
    six, _ = header_of({f"t{number}": entry([0], 0, 0) for number in range(6)}, 0)
    room.check(URI, FILE, six)
    with pytest.raises(MalformedCheckpoint, match="more than 10 tensors"):
        room.check(URI, FILE, six)


def test_headers_of_files_that_are_read_at_once_have_few_bytes_together(tmp_path, headers_in):
    """They are counted before they are read: 16 files at once may each have a header of 100 MB."""
    (tmp_path / "model").mkdir()
    for number in range(4):
        content = save({f"t{number}": np.ones(1, np.float32)}, {"comment": "a" * (OTHER_BYTES // 3)})
        (tmp_path / "model" / f"{number}.safetensors").write_bytes(content)
    with pytest.raises(MalformedCheckpoint, match=r"more than \d+ bytes, too many for 10 tensors"):
        headers_in(tmp_path / "model", 10)
    (tmp_path / "model" / "3.safetensors").unlink()
    (tmp_path / "model" / "2.safetensors").unlink()
    assert len(headers_in(tmp_path / "model", 10)) == 2


@pytest.mark.parametrize(
    ("begin", "value", "end"),
    [
        (b"{", b'"t%d":{},', b'"t":{}}'),
        (b'{"__metadata__":{', b'"t%d" : "",', b'"t":""}}'),
        (b'{"t":{"dtype":"F32","shape":[', b"%d,", b'1],"data_offsets":[0,0]}}'),
    ],
    ids=["entries", "metadata", "axes"],
)
def test_a_header_has_few_values_besides_those_of_tensors(begin, value, end):
    header = begin + b"".join(value % number for number in range(300_000)) + end
    with pytest.raises(MalformedCheckpoint, match="more than 10 tensors"):
        HeaderRoom(10).check(URI, FILE, header)


def test_eight_bytes_hold_the_length_of_the_header():
    assert header_size(URI, FILE, struct.pack("<Q", 0) + b"{}", 8) == 8
    with pytest.raises(MalformedCheckpoint, match="has 7 bytes, too few"):
        header_size(URI, FILE, struct.pack("<Q", 0)[:7], 7)


def test_an_entry_says_where_its_bytes_lie_in_the_file():
    header = {"b": entry([2], 0, 8), "a": entry([2, 1], 8, 12, "BF16"), "__metadata__": {"format": "pt"}}
    data, size_bytes = header_of(header, 12)
    entries = parse_header(URI, FILE, data, size_bytes)
    assert entries == {
        "b": TensorEntry(FILE, "F32", (2,), len(data), len(data) + 8),
        "a": TensorEntry(FILE, "BF16", (2, 1), len(data) + 8, len(data) + 12),
    }


def test_empty_tensors_lie_anywhere_between_the_others():
    header = {"a": entry([1], 0, 4), "none": entry([0, 3], 4, 4), "b": entry([1], 4, 8), "end": entry([0], 8, 8)}
    assert set(parsed(header, 8)) == {"a", "none", "b", "end"}
    assert set(parsed({"none": entry([0], 0, 0), "a": entry([], 0, 4)}, 4)) == {"none", "a"}
    assert parsed({}, 0) == {}


@pytest.mark.parametrize("names", list(itertools.permutations(["start", "a", "none", "b", "end"])), ids="-".join)
def test_a_header_may_name_its_tensors_in_any_order(names):
    entries = {
        "start": entry([0], 0, 0),
        "a": entry([1], 0, 4),
        "none": entry([0, 3], 4, 4),
        "b": entry([1], 4, 8),
        "end": entry([0], 8, 8),
    }
    assert list(parsed({name: entries[name] for name in names}, 8)) == list(names)


def test_a_tensor_of_a_type_that_is_not_served_may_have_any_number_of_bytes():
    assert parsed({"a": entry([3], 0, 5, "F4")}, 5)["a"].dtype_name == "F4"


@pytest.mark.parametrize(
    ("header", "body_bytes", "reason"),
    [
        ({"a": entry([2], 0, 4)}, 4, r"'a' of shape \[2\] in F32 needs 8 bytes; the header gives it 4"),
        ({"a": entry([1], 0, 4)}, 5, "describes .* bytes; the file has"),
        ({"a": entry([1], 0, 4), "b": entry([1], 5, 9)}, 9, "gap or overlap at"),
        ({"a": entry([2], 0, 8), "b": entry([1], 4, 8)}, 8, "gap or overlap at"),
        ({"a": entry([-1], 0, 4)}, 4, "'a' has impossible numbers"),
        ({"a": entry([True], 0, 4)}, 4, "'a' has impossible numbers"),
        ({"a": entry([10**3999, 10**3999], 0, 4)}, 4, "'a' has impossible numbers"),
        ({"a": entry([1] * 17, 0, 4)}, 4, "'a' has impossible numbers"),
        ({"a": entry([0], 4, 0)}, 4, "'a' has impossible numbers"),
        ({"a": entry([1], -4, 0)}, 4, "'a' has impossible numbers"),
        ({"a": {"dtype": "F32", "shape": [1]}}, 4, "'a' is malformed"),
        ({"a": {"shape": [1], "data_offsets": [0, 4]}}, 4, "'a' is malformed"),
        ({"a": {"dtype": "F32", "data_offsets": [0, 4]}}, 4, "'a' is malformed"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, 4, "'a' is malformed"),
        ({"a": 7}, 4, "'a' is malformed"),
        ([], 0, "not a JSON object"),
    ],
)
def test_a_header_that_lies_is_refused_under_the_files_name(header, body_bytes, reason):
    with pytest.raises(MalformedCheckpoint, match=reason) as caught:
        parsed(header, body_bytes)
    assert (caught.value.uri, caught.value.file) == (URI, FILE)


def test_a_header_that_is_nested_without_end_is_refused():
    nested = b"[" * 100_000
    with pytest.raises(MalformedCheckpoint, match="not JSON"):
        parse_header(URI, FILE, struct.pack("<Q", len(nested)) + nested, 8 + len(nested))


def test_a_tensor_that_is_in_two_files_is_refused_under_the_second():
    first, second = TensorEntry("1", "F32", (1,), 8, 12), TensorEntry("2", "F32", (1,), 8, 12)
    assert merged(URI, [{"a": first}, {"b": second}]) == {"a": first, "b": second}
    with pytest.raises(MalformedCheckpoint, match="'a' is in 1 too") as caught:
        merged(URI, [{"a": first}, {"a": second}])
    assert (caught.value.uri, caught.value.file) == (URI, "2")


def test_a_type_that_is_not_served_is_refused_under_its_file():
    wide = StoredTensor("a", (1,))
    check_dtype(URI, wide, TensorEntry("1", "F16", (1,), 8, 10))
    with pytest.raises(MalformedCheckpoint, match="'a' is I8; supported types are F32, F16, BF16") as caught:
        check_dtype(URI, wide, TensorEntry("1", "I8", (1,), 8, 9))
    assert (caught.value.uri, caught.value.file) == (URI, "1")


@pytest.fixture
def headers_in(tmp_path: Path) -> Callable[..., list]:
    def read(folder: Path, most: int = safetensors.MAX_TENSORS) -> list:
        source = open_source(parse_location(str(folder)), cache_root=tmp_path / "cache")
        objects = source.list()
        with source.open_files(objects, objects, cache=None, progress=Progress()) as opened:
            return read_headers(opened.files, RetryBudget(quick_limits()), most)

    return read


@pytest.mark.parametrize("first_read_bytes", [8, 9, 100, 10**6])
def test_headers_are_read_whole_however_much_comes_first(tmp_path, monkeypatch, headers_in, first_read_bytes):
    monkeypatch.setattr(safetensors, "FIRST_READ_BYTES", first_read_bytes)
    (tmp_path / "model" / "part").mkdir(parents=True)
    contents = {}
    for number in range(3):
        content = save({f"t{number}.{index}": np.ones((index, 2), np.float32) for index in range(9)})
        (tmp_path / "model" / "part" / f"{number}.safetensors").write_bytes(content)
        contents[f"part/{number}.safetensors"] = content
    headers = headers_in(tmp_path / "model")
    assert [header.file.info.name for header in headers] == list(contents)
    for number, header in enumerate(headers):
        content = contents[header.file.info.name]
        assert content.startswith(header.data)
        assert len(header.data) == 8 + struct.unpack("<Q", content[:8])[0]
        # Tensors of a folder have its name, because modules in several folders name theirs alike.
        assert header.entries[f"part/t{number}.8"].shape == (8, 2)
        assert header.entries[f"part/t{number}.8"].file == f"{number}.safetensors"


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"short", "has 5 bytes"), (struct.pack("<Q", 5) + b"nojso", "the header is not JSON")],
)
def test_a_broken_header_is_named_by_its_object(tmp_path, headers_in, content: bytes, reason: str):
    (tmp_path / "model" / "part").mkdir(parents=True)
    (tmp_path / "model" / "part" / "0.safetensors").write_bytes(content)
    with pytest.raises(MalformedCheckpoint, match=rf"0\.safetensors: {reason}") as caught:
        headers_in(tmp_path / "model")
    assert caught.value.uri == str(tmp_path / "model")
