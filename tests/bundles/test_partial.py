import json

import pytest

from service.bundles.bundle import BundleRefused
from service.bundles.folder import BundleFolder
from service.bundles.partial import INDEX_NAME


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "bundles"
    path.mkdir(mode=0o700)
    return path


def kept(folder):
    return BundleFolder(folder).partial("3f2a")


def index_of(folder):
    return folder / ".3f2a.kept" / INDEX_NAME


def test_what_is_kept_is_found_by_the_next_start_and_by_no_other_key(folder):
    kept(folder).add("decode", b"one", 1.25)
    kept(folder).add("prefill", b"two", 2.5)
    found = kept(folder).read()
    assert {name: (data, file.compile_seconds) for name, (file, data) in found.items()} == {
        "decode": (b"one", 1.25),
        "prefill": (b"two", 2.5),
    }
    assert BundleFolder(folder).partial("77aa").read() == {}
    assert list(BundleFolder(folder).manifests()) == []  # no lookup takes it for a bundle


def test_nothing_is_kept_yet_in_a_folder_that_does_not_exist(tmp_path):
    assert kept(tmp_path / "none").read() == {}


def test_a_start_that_was_killed_in_the_middle_of_a_line_loses_that_one_alone(folder):
    kept(folder).add("decode", b"one", 1.0)
    kept(folder).add("prefill", b"two", 1.0)
    index = index_of(folder)
    index.write_bytes(index.read_bytes()[:-20])
    assert kept(folder).read().keys() == {"decode"}
    kept(folder).add("prefill", b"two", 1.0)
    assert kept(folder).read().keys() == {"decode", "prefill"}


@pytest.mark.parametrize("change", [b"0ne", b"one more"])
def test_bytes_that_were_changed_are_left_out(folder, change):
    kept(folder).add("decode", b"one", 1.0)
    [file] = index_of(folder).parent.glob("decode-*")
    file.write_bytes(change)
    assert kept(folder).read() == {}


@pytest.mark.parametrize("line", ["[]", "{}", '"x"', "\xff", '{"name": "x", "file": 5}'])
def test_lines_of_another_kind_are_left_out(folder, line):
    kept(folder).add("decode", b"one", 1.0)
    with index_of(folder).open("a") as index:
        index.write(line + "\n")
    assert kept(folder).read().keys() == {"decode"}


def test_no_line_leads_out_of_the_folder(folder):
    kept(folder).add("decode", b"one", 1.0)
    entry = json.loads(index_of(folder).read_text())
    (folder / entry["file"]).write_bytes(b"one")
    index_of(folder).write_text(json.dumps(entry | {"name": "other", "file": f"../{entry['file']}"}) + "\n")
    assert kept(folder).read() == {}


@pytest.mark.parametrize("which", ["bundles", "kept"])
def test_a_folder_that_others_can_write_to_is_refused(folder, which):
    kept(folder).add("decode", b"one", 1.0)
    (folder if which == "bundles" else index_of(folder).parent).chmod(0o777)
    with pytest.raises(BundleRefused, match="other users"):
        kept(folder).read()


def test_they_go_when_their_bundle_is_complete(folder):
    kept(folder).add("decode", b"one", 1.0)
    kept(folder).discard()
    kept(folder).discard()
    assert kept(folder).read() == {}
    assert list(folder.iterdir()) == []


def test_those_of_a_start_that_nobody_began_again_are_swept(folder, monkeypatch):
    kept(folder).add("decode", b"one", 1.0)
    place = BundleFolder(folder)
    place.write("aaaa", {"manifest.json": b"{}"})
    assert kept(folder).read()
    monkeypatch.setattr("service.bundles.folder.FORGET_AFTER_S", -1)
    place.write("bbbb", {"manifest.json": b"{}"})
    assert kept(folder).read() == {}
