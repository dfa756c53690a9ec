"""The last used bundle, read before the key of the needed one is known."""

import hashlib
import os
from pathlib import Path

import pytest

from service.bundles.bundle import MANIFEST_NAME
from service.bundles.folder import BundleFolder
from service.bundles.prefetch import prefetch_bundle

FILES = {"a.executable": b"aaa", MANIFEST_NAME: b"{}"}


@pytest.fixture
def path(tmp_path) -> Path:
    folder = BundleFolder(tmp_path)
    for name in ("old", "new"):
        folder.write(name, FILES)
    os.utime(tmp_path / "old" / MANIFEST_NAME, (1, 1))
    return tmp_path


def test_the_bundle_that_was_used_last_is_read_and_summed(path):
    prefetched = prefetch_bundle(path)
    assert prefetched.file(path / "old" / MANIFEST_NAME) is None
    data = prefetched.file(path / "new" / "a.executable")
    assert data == b"aaa"
    assert prefetched.sha256(data) == hashlib.sha256(b"aaa").hexdigest()
    assert prefetched.sha256(b"other") == hashlib.sha256(b"other").hexdigest()


def test_a_folder_returns_prefetched_bytes_and_reads_the_rest(path):
    prefetched = prefetch_bundle(path)
    (path / "new" / "a.executable").write_bytes(b"late")
    folder = BundleFolder(path, prefetched=prefetched)
    assert folder.read("new", "a.executable") == b"aaa"
    assert folder.read("old", "a.executable") == b"aaa"
    assert folder.read("new", "none") is None


def test_a_machine_without_bundles_prefetches_nothing(tmp_path):
    assert prefetch_bundle(tmp_path / "none").files == {}
    assert prefetch_bundle(tmp_path).files == {}
