"""A checkpoint with a false header or hostile names is refused before a weight is read or a file is created."""

import json
import struct

import pytest

from service.errors import HostileName, MalformedCheckpoint
from tests.checkpoint.streamed import OBJECTS, SHARDS, Loader
from tests.gcs import GcsBucket


def header_of(data: bytes) -> tuple[dict, bytes]:
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def with_header(change) -> bytes:
    header, body = header_of(OBJECTS[SHARDS[0]])
    change(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def _first(header: dict) -> dict:
    return header["model.embed_tokens.weight"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (struct.pack("<Q", 10**7) + bytes(100_000), "claims a header of 10000000 bytes"),
        (struct.pack("<Q", 2**63) + bytes(100), "claims a header"),
        (b"short", "too few for a safetensors header"),
        (OBJECTS[SHARDS[0]][:-10], "It is truncated or invalid"),
        (with_header(lambda h: _first(h).update(data_offsets=[0, 10**12])), "needs .* bytes"),
        (with_header(lambda h: _first(h).update(data_offsets=[-2, 38398])), "impossible numbers"),
        (with_header(lambda h: _first(h).update(shape=[64, 300])), r"has shape \[64, 300\]; config.json makes it"),
        (with_header(lambda h: h.update({"other": h.pop("model.embed_tokens.weight")})), "is missing"),
        (with_header(lambda h: _first(h).update(dtype="I16")), "is I16; supported types are"),
        (
            with_header(lambda h: h.update({"model.spare": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}})),
            "no place",
        ),
    ],
)
def test_a_false_header_is_refused_before_a_weight_is_read(
    loader: Loader, gcs_bucket: GcsBucket, data: bytes, message: str
):
    gcs_bucket.upload(f"llama/{SHARDS[0]}", data)
    gcs_bucket.faults([])
    with pytest.raises(MalformedCheckpoint, match=message):
        loader.load()
    assert {line.rpartition("bytes=")[2].split("-")[0] for line in gcs_bucket.requests("safetensors.*alt=media")} == {
        "0"
    }
    assert not loader.visible()


def test_hostile_names_are_refused_before_a_file_is_created(loader: Loader, gcs_bucket: GcsBucket):
    gcs_bucket.upload("llama/TOKENIZER.json", b"")
    gcs_bucket.upload("llama/tokenizer_config.json", b"{}")
    gcs_bucket.upload("llama/../outside.safetensors", b"")
    with pytest.raises(HostileName):
        loader.load()
    assert not loader.root.exists()
