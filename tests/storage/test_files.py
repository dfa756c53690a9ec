"""Locks exclude other holders until they are released; an atomic write is complete or invisible."""

import errno
import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from service.storage.files import (
    atomic_write,
    part_path,
    private_folder,
    try_lock,
    try_lock_descriptor,
    wait_for_lock,
)


def test_a_lock_excludes_others_until_it_is_released(tmp_path: Path):
    path = tmp_path / "lock"
    lock = try_lock(path)
    assert lock is not None
    assert try_lock(path) is None
    assert try_lock(path, is_shared=True) is None
    lock.release()
    lock.release()
    with wait_for_lock(path, pytest.fail):
        assert try_lock(path) is None


def test_shared_locks_exclude_exclusive_ones_only(tmp_path: Path):
    path = tmp_path / "lock"
    first, second = try_lock(path, is_shared=True), try_lock(path, is_shared=True)
    assert first is not None
    assert second is not None
    first.release()
    assert try_lock(path) is None
    second.release()
    assert try_lock(path) is not None


def test_waiting_for_a_lock_ends_when_its_holder_releases_it_or_the_caller_gives_up(tmp_path: Path):
    held = try_lock(tmp_path / "lock")
    assert held is not None
    with wait_for_lock(tmp_path / "lock", held.release), pytest.raises(TimeoutError):
        wait_for_lock(tmp_path / "lock", give_up)


def give_up() -> None:
    raise TimeoutError


def test_an_open_file_is_locked_for_one_unless_it_is_shared(tmp_path: Path):
    path = tmp_path / "file"
    with path.open("wb") as first, path.open("rb") as second:
        assert try_lock_descriptor(first.fileno())
        assert not try_lock_descriptor(second.fileno())
        assert not try_lock_descriptor(second.fileno(), is_shared=True)
        assert try_lock_descriptor(first.fileno(), is_shared=True)
        assert try_lock_descriptor(second.fileno(), is_shared=True)
        assert not try_lock_descriptor(second.fileno())


def test_an_atomic_write_replaces_a_file_and_leaves_no_other(tmp_path: Path):
    for data in (b"one", b"two"):
        atomic_write(tmp_path / "file", data)
        assert [path.read_bytes() for path in tmp_path.iterdir()] == [data]


def test_an_atomic_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(descriptor: int) -> None:
        raise OSError("no disk")

    atomic_write(tmp_path / "file", b"old")
    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="no disk"):
        atomic_write(tmp_path / "file", b"new")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_part_names_are_hidden_new_and_in_the_same_folder(tmp_path: Path):
    names = {part_path(tmp_path / "file") for _ in range(3)}
    assert len(names) == 3
    assert all(path.parent == tmp_path and path.match(".file.*.part") for path in names)


def test_a_file_that_cannot_be_locked_costs_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr("fcntl.flock", fail)
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="no locks here"):
        try_lock(tmp_path / "lock")
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_lock_that_another_holds_costs_no_descriptor(tmp_path: Path):
    with wait_for_lock(tmp_path / "lock", pytest.fail):
        before = os.listdir("/proc/self/fd")
        assert try_lock(tmp_path / "lock") is None
        assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_lock_on_a_file_that_was_deleted_meanwhile_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, flock, deleted = tmp_path / "lock", fcntl.flock, []

    def delete_first(descriptor: int, operation: int) -> None:
        if not deleted:
            deleted.append(path.unlink())
        flock(descriptor, operation)

    monkeypatch.setattr("fcntl.flock", delete_first)
    with try_lock(path):
        assert path.exists()
        assert try_lock(path) is None


def test_a_private_folder_is_this_users_and_ends_with_the_process(tmp_path: Path):
    code = """
from service.storage.files import private_folder
folder = private_folder()
(folder / "file").write_text("x")
print(folder, oct(folder.stat().st_mode & 0o777))
"""
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    folder, mode = ran.stdout.split()
    assert mode == "0o700"
    assert Path(folder).parent == tmp_path
    assert not Path(folder).exists()
    made = private_folder()
    assert made.name.startswith("levserve-")
    assert list(made.iterdir()) == []
