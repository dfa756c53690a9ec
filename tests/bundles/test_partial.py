import json
import os

import pytest

from service.bundles.bundle import MANIFEST_NAME, BundleRefused
from service.bundles.folder import BundleFolder
from service.storage.entries import FORGET_AFTER_S


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "bundles"
    path.mkdir(mode=0o700)
    return path


def kept(folder):
    return BundleFolder(folder).partial("3f2a")


def entry_of(folder, name):
    [entry] = (folder / "3f2a").glob(f"{name}-*.executable.json")
    return entry


def test_what_is_kept_is_found_by_the_next_start_and_by_no_other_key(folder):
    kept(folder).add("decode", b"one", 1.25)
    kept(folder).add("prefill", b"two", 2.5)
    found = kept(folder).read()
    assert {name: (data, file.compile_seconds) for name, (file, data) in found.items()} == {
        "decode": (b"one", 1.25),
        "prefill": (b"two", 2.5),
    }
    assert BundleFolder(folder).partial("77aa").read() == {}
    (folder / "3f2a").rename(folder / "77aa")
    assert BundleFolder(folder).partial("77aa").read() == {}


def test_no_lookup_takes_them_for_a_bundle(folder):
    kept(folder).add("decode", b"one", 1.0)
    assert list(BundleFolder(folder).manifests()) == []
    assert not BundleFolder(folder).holds("3f2a")


def test_nothing_is_kept_yet_in_a_folder_that_does_not_exist(tmp_path):
    assert kept(tmp_path / "none").read() == {}


def test_a_start_that_was_killed_before_an_entry_was_written_loses_that_one_alone(folder):
    kept(folder).add("decode", b"one", 1.0)
    kept(folder).add("prefill", b"two", 1.0)
    entry_of(folder, "prefill").unlink()
    assert kept(folder).read().keys() == {"decode"}
    kept(folder).add("prefill", b"two", 1.0)
    assert kept(folder).read().keys() == {"decode", "prefill"}


@pytest.mark.parametrize("change", [b"0ne", b"one more"])
def test_bytes_that_were_changed_are_left_out(folder, change):
    kept(folder).add("decode", b"one", 1.0)
    entry_of(folder, "decode").with_suffix("").write_bytes(change)
    assert kept(folder).read() == {}
    kept(folder).add("decode", b"one", 1.0)
    assert kept(folder).read().keys() == {"decode"}


@pytest.mark.parametrize("content", ["", "[]", "{}", '"x"', "\xff", '{"name": "x", "file": 5}'])
def test_entries_of_another_kind_are_left_out(folder, content):
    kept(folder).add("decode", b"one", 1.0)
    entry_of(folder, "decode").with_name("other.executable.json").write_text(content)
    assert kept(folder).read().keys() == {"decode"}


def test_no_entry_leads_out_of_the_folder(folder):
    kept(folder).add("decode", b"one", 1.0)
    path = entry_of(folder, "decode")
    entry = json.loads(path.read_text())
    (folder / entry["file"]).write_bytes(b"one")
    path.write_text(json.dumps(entry | {"name": "other", "file": f"../{entry['file']}"}))
    assert kept(folder).read() == {}


@pytest.mark.parametrize("which", ["", "3f2a"])
def test_a_folder_that_others_can_write_to_is_refused(folder, which):
    kept(folder).add("decode", b"one", 1.0)
    (folder / which).chmod(0o777)
    with pytest.raises(BundleRefused, match="other users"):
        kept(folder).read()


def test_a_complete_bundle_has_its_own_files_alone(folder):
    kept(folder).add("decode", b"one", 1.0)
    file = entry_of(folder, "decode").with_suffix("").name
    assert BundleFolder(folder).write("3f2a", {file: b"one", MANIFEST_NAME: b"{}"})
    kept(folder).add("late", b"two", 1.0)
    assert sorted(os.listdir(folder / "3f2a")) == [file, MANIFEST_NAME]
    assert kept(folder).read() == {}


def test_those_of_a_start_that_nobody_began_again_are_swept_and_nothing_else(folder):
    kept(folder).add("decode", b"one", 1.0)
    (folder / "other").mkdir()
    BundleFolder(folder).write("aaaa", {MANIFEST_NAME: b"{}"})
    assert kept(folder).read()
    for name in ("3f2a", "other"):
        long_ago = (folder / name).stat().st_mtime - 2 * FORGET_AFTER_S
        os.utime(folder / name, (long_ago, long_ago))
    BundleFolder(folder).write("bbbb", {MANIFEST_NAME: b"{}"})
    assert sorted(os.listdir(folder)) == ["aaaa", "bbbb", "other"]
