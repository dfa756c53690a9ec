"""Objects stored with gzip: unpacked to the byte, and refused if they are damaged or unpack to far too much."""

import gzip
from pathlib import Path

import google_crc32c
import pytest

from service.errors import MalformedCheckpoint
from service.storage import gzip as stored_gzip
from service.storage.gzip import unpack_file, unpacked
from service.storage.objects import ObjectInfo

URI = "gs://bucket/model"
TEXT = b"".join(b"%d, " % number for number in range(20_000))


def info_of(stored: bytes, content_encoding: str = "gzip") -> ObjectInfo:
    return ObjectInfo("tokenizer.json", len(stored), content_encoding=content_encoding)


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_gzip, "CHUNK_BYTES", 1000)


@pytest.mark.usefixtures("small_chunks")
def test_an_object_is_unpacked_whatever_its_parts(tmp_path: Path):
    stored = gzip.compress(TEXT, mtime=0)
    assert unpacked(URI, info_of(stored), stored) == TEXT
    (tmp_path / "packed").write_bytes(stored)
    crc = unpack_file(URI, info_of(stored), tmp_path / "packed", tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == TEXT
    assert crc == google_crc32c.value(TEXT)


def test_an_object_that_is_not_packed_stays_as_it_is():
    stored = gzip.compress(TEXT, mtime=0)
    assert unpacked(URI, info_of(stored, content_encoding=""), stored) == stored
    assert unpacked(URI, info_of(stored, content_encoding=" GZip "), stored) == TEXT


def test_a_file_that_is_there_already_is_never_written_over(tmp_path: Path):
    (tmp_path / "packed").write_bytes(gzip.compress(TEXT, mtime=0))
    (tmp_path / "file").write_bytes(b"another's")
    with pytest.raises(FileExistsError):
        unpack_file(URI, info_of(b""), tmp_path / "packed", tmp_path / "file")


def test_an_object_unpacks_to_at_most_a_fixed_multiple_of_its_size(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stored_gzip, "ALLOWANCE_BYTES", 1000)
    monkeypatch.setattr(stored_gzip, "CHUNK_BYTES", 100)
    stored = gzip.compress(bytes(33_000))
    at_limit = ObjectInfo("tokenizer.json", 1000, content_encoding="gzip")
    assert unpacked(URI, at_limit, stored) == bytes(33_000)
    with pytest.raises(MalformedCheckpoint, match="many times its stored size") as caught:
        unpacked(URI, at_limit, gzip.compress(bytes(33_001)))
    assert (caught.value.uri, caught.value.file) == (URI, "tokenizer.json")


@pytest.mark.parametrize(
    ("stored", "reason"),
    [
        (b"no gzip", "is not a gzip stream"),
        (gzip.compress(TEXT, mtime=0)[2:], "is not a gzip stream"),
        (b"", "not exactly one gzip stream"),
        (gzip.compress(TEXT, mtime=0)[:-1], "not exactly one gzip stream"),
        (gzip.compress(TEXT, mtime=0) + b"x", "not exactly one gzip stream"),
        (gzip.compress(TEXT, mtime=0) * 2, "not exactly one gzip stream"),
    ],
)
def test_what_is_not_one_gzip_stream_is_refused_by_name(stored: bytes, reason: str):
    with pytest.raises(MalformedCheckpoint, match=reason) as caught:
        unpacked(URI, info_of(stored), stored)
    assert (caught.value.uri, caught.value.file) == (URI, "tokenizer.json")
