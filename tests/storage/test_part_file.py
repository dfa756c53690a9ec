"""A file in the making: invisible until it is complete, complete once it is visible."""

import errno
import gzip
import os
import stat
from pathlib import Path

import google_crc32c
import pytest

from service.errors import StorageFull, TransferFailed
from service.storage.crc32c import to_text
from service.storage.files import PartFile
from service.storage.objects import ObjectInfo

URI = "gs://bucket/model"
INFO = ObjectInfo("data/0.bin", 6, crc32c="the listing's")


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def test_bytes_in_any_order_become_the_file(tmp_path: Path):
    part = PartFile(URI, INFO, tmp_path)
    part.write(b"def", 3)
    part.write(memoryview(b"abc"), 0)
    [hidden] = files(tmp_path)
    assert hidden.startswith("data/.0.bin.")
    assert hidden.endswith(".part")
    assert part.commit() == "the listing's"
    assert files(tmp_path) == ["data/0.bin"]
    assert (tmp_path / "data/0.bin").read_bytes() == b"abcdef"
    assert stat.S_IMODE((tmp_path / "data/0.bin").stat().st_mode) == 0o600
    part.discard()
    assert files(tmp_path) == ["data/0.bin"]


def test_nothing_is_left_of_a_file_that_is_discarded(tmp_path: Path):
    part = PartFile(URI, INFO, tmp_path)
    part.discard()
    assert files(tmp_path) == []
    part.write(b"abc", 0)
    part.discard()
    part.discard()
    assert files(tmp_path) == []


def test_an_object_without_bytes_is_an_empty_file(tmp_path: Path):
    PartFile(URI, ObjectInfo("empty", 0), tmp_path).commit()
    assert (tmp_path / "empty").read_bytes() == b""


def test_the_room_for_all_bytes_is_taken_before_the_first(tmp_path: Path):
    part = PartFile(URI, ObjectInfo("a", 100_000), tmp_path)
    part.write(b"x", 0)
    [hidden] = tmp_path.iterdir()
    assert hidden.stat().st_size == 100_000
    assert hidden.stat().st_blocks * 512 >= 100_000
    part.discard()


def test_a_write_that_the_system_divides_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pwrite = os.pwrite
    monkeypatch.setattr("os.pwrite", lambda descriptor, data, offset: pwrite(descriptor, data[:2], offset))
    part = PartFile(URI, INFO, tmp_path)
    part.write(b"abcdef", 0)
    part.commit()
    assert (tmp_path / "data/0.bin").read_bytes() == b"abcdef"


def test_a_packed_object_is_committed_unpacked_with_the_sum_of_its_file(tmp_path: Path):
    text = b"text" * 1000
    stored = gzip.compress(text)
    part = PartFile(URI, ObjectInfo("a", len(stored), content_encoding="gzip"), tmp_path)
    part.write(stored, 0)
    assert part.commit() == to_text(google_crc32c.value(text))
    assert files(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == text


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", ["os.posix_fallocate", "os.pwrite", "os.fsync"])
def test_a_full_disk_is_named_with_what_is_needed_and_what_is_free(tmp_path, monkeypatch, number, call):
    def fail(*_: object) -> None:
        raise OSError(number, "full")

    monkeypatch.setattr(call, fail)
    part = PartFile(URI, INFO, tmp_path)

    def write_all() -> None:
        part.write(b"abcdef", 0)
        part.commit()

    with pytest.raises(StorageFull) as caught:
        write_all()
    error = caught.value
    assert (error.uri, error.needed_bytes) == (URI, 6)
    assert error.free_bytes > 0
    assert str(tmp_path / "data") in str(error)
    part.discard()
    assert files(tmp_path) == []


def test_another_failure_of_the_disk_names_the_object_and_the_folder(tmp_path: Path):
    (tmp_path / "data").write_text("a file")
    with pytest.raises(TransferFailed, match=f"cannot be written under {tmp_path}/data: ") as caught:
        PartFile(URI, INFO, tmp_path).write(b"abc", 0)
    assert (caught.value.uri, caught.value.name) == (URI, "data/0.bin")


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL])
def test_a_file_system_that_reserves_no_room_is_written_all_the_same(tmp_path, monkeypatch, number):
    def fail(*_: object) -> None:
        raise OSError(number, "not here")

    monkeypatch.setattr("os.posix_fallocate", fail)
    part = PartFile(URI, INFO, tmp_path)
    part.write(b"abcdef", 0)
    part.commit()
    assert (tmp_path / "data/0.bin").read_bytes() == b"abcdef"
