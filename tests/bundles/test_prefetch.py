"""The last used bundle, read before it is known which one is needed."""

import hashlib
import os
import time
from pathlib import Path

import pytest

from service.bundles.bundle import MANIFEST_NAME
from service.bundles.folder import BundleFolder
from service.bundles.prefetch import BundleAhead

FILES = {"a.executable": b"aaa", MANIFEST_NAME: b"{}"}


def wait_for(ahead: BundleAhead, paths: list[Path]) -> None:
    give_up_s = time.monotonic() + 10
    while any(ahead.file(path) is None for path in paths):
        assert time.monotonic() < give_up_s
        time.sleep(0.01)


@pytest.fixture
def path(tmp_path) -> Path:
    folder = BundleFolder(tmp_path)
    for name in ("old", "new"):
        folder.write(name, FILES)
    os.utime(tmp_path / "old", (1, 1))
    return tmp_path


def test_the_bundle_that_was_used_last_is_read_and_summed(path):
    ahead = BundleAhead(path)
    wait_for(ahead, [path / "new" / name for name in FILES])
    assert ahead.file(path / "old" / MANIFEST_NAME) is None
    data = ahead.file(path / "new" / "a.executable")
    assert data == b"aaa"
    assert ahead.sha256(data) == hashlib.sha256(b"aaa").hexdigest()
    assert ahead.sha256(b"other") == hashlib.sha256(b"other").hexdigest()


def test_a_folder_gives_what_was_read_of_it_and_reads_the_rest(path):
    ahead = BundleAhead(path)
    wait_for(ahead, [path / "new" / name for name in FILES])
    (path / "new" / "a.executable").write_bytes(b"late")
    folder = BundleFolder(path, ahead=ahead)
    assert folder.read("new", "a.executable") == b"aaa"
    assert folder.read("old", "a.executable") == b"aaa"
    assert folder.read("new", "none") is None


def test_a_machine_without_bundles_has_nothing_ahead(tmp_path):
    ahead = BundleAhead(tmp_path / "none")
    assert ahead.file(tmp_path / "none" / "key" / MANIFEST_NAME) is None
