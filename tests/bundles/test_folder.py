"""A bundle in a folder is whole or not there, whoever writes and whoever is killed."""

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from service.bundles.bundle import MANIFEST_NAME, BundleRefused
from service.bundles.folder import MAX_BUNDLES, BundleFolder
from tests.bundles.bundles import big_files

FILES = {"a.executable": b"aaa", MANIFEST_NAME: b"{}"}
ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path) -> BundleFolder:
    return BundleFolder(tmp_path / "bundles")


def test_what_is_written_is_read(folder, tmp_path):
    assert folder.read("key", MANIFEST_NAME) is None
    assert folder.write("key", FILES)
    assert {name: folder.read("key", name) for name in FILES} == FILES
    assert (tmp_path / "bundles").stat().st_mode & 0o777 == 0o700


def test_the_first_writer_wins_and_a_discard_makes_room(folder):
    folder.write("key", FILES)
    assert not folder.write("key", {MANIFEST_NAME: b"other"})
    assert folder.read("key", MANIFEST_NAME) == b"{}"
    folder.discard("key")
    folder.discard("key")
    assert folder.read("key", MANIFEST_NAME) is None
    assert folder.write("key", {MANIFEST_NAME: b"other"})


def test_two_writers_at_once_leave_one_whole_bundle(folder, tmp_path):
    start = threading.Barrier(8)

    def write(fill: str) -> None:
        start.wait()
        BundleFolder(tmp_path / "bundles").write("key", big_files(fill))

    threads = [threading.Thread(target=write, args=(fill,)) for fill in "abcdefgh"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fill = folder.read("key", MANIFEST_NAME).decode()
    assert {name: folder.read("key", name) for name in big_files(fill)} == big_files(fill)
    assert os.listdir(tmp_path / "bundles") == ["key"]


@pytest.mark.slow
def test_a_kill_in_the_middle_leaves_nothing_half_visible_and_a_later_writer_completes_it(folder, tmp_path):
    root = tmp_path / "bundles"
    for _ in range(6):
        command = [sys.executable, "-m", "tests.bundles.bundles", str(root), "x"]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(random.uniform(0.001, 0.1))
            process.kill()
        if folder.holds("key"):
            assert {name: folder.read("key", name) for name in big_files("x")} == big_files("x")
            folder.discard("key")
    folder.write("key", big_files("x"))
    assert {name: folder.read("key", name) for name in big_files("x")} == big_files("x")


def test_the_least_recently_used_go_first(folder, tmp_path):
    for index in range(MAX_BUNDLES):
        folder.write(f"key{index}", FILES)
        os.utime(tmp_path / "bundles" / f"key{index}" / MANIFEST_NAME, (index, index))
    folder.read("key0", MANIFEST_NAME)
    folder.write("new", FILES)
    left = set(os.listdir(tmp_path / "bundles"))
    assert len(left) == MAX_BUNDLES
    assert {"key0", "new"} <= left
    assert "key1" not in left


def test_a_folder_that_others_can_write_is_refused_unless_it_was_chosen(folder, tmp_path):
    folder.write("key", FILES)
    (tmp_path / "bundles").chmod(0o777)
    with pytest.raises(BundleRefused, match="is writable by other users"):
        folder.read("key", MANIFEST_NAME)
    assert BundleFolder(tmp_path / "bundles", is_private=False).read("key", MANIFEST_NAME) == b"{}"


def test_a_place_that_is_a_file_is_an_error_to_write_and_empty_to_read(tmp_path):
    (tmp_path / "file").write_text("x")
    folder = BundleFolder(tmp_path / "file")
    assert folder.read("key", MANIFEST_NAME) is None
    with pytest.raises(OSError):  # noqa: PT011 - any of them
        folder.write("key", FILES)
