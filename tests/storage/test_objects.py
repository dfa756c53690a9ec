"""Names that would lead outside the cache are refused, before anything is downloaded; and there may be many names."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import HostileName
from service.storage.objects import ObjectInfo, check_name, check_names_together
from tests.stored import REPOSITORY, Puller

HOSTILE = ["../evil", "a/../../evil", "/etc/passwd", "a//b", "./a", "a\\..\\b", "a\nb", "a\x7f", "x" * 201, "..", "a/."]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_in_the_bucket_stops_the_listing(puller: Puller, name: str):
    puller.bucket.upload(f"model/{name}", b"evil")
    puller.bucket.faults([])
    with pytest.raises(HostileName) as caught:
        puller.pull()
    assert caught.value.name == name
    assert not puller.bucket.media_requests()
    assert not puller.root.exists()


@pytest.mark.parametrize("name", ["", "a\0b", "\ud800", "é" * 101, "a/" * 600 + "a"])
def test_a_name_that_no_bucket_takes_is_refused_too(name: str):
    with pytest.raises(HostileName):
        check_name("gs://bucket", name)


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (["a.json", "A.json"], "in case only"),
        (["data", "data/0"], "both a file and the folder"),
        (["COMPLETE.json"], "reserved"),
        (["complete.JSON"], "reserved"),
        ([".model.1.ab.part"], "reserved"),
    ],
)
def test_names_that_cannot_lie_together_are_refused_before_the_pull(puller: Puller, names: list[str], reason: str):
    for name in names:
        puller.bucket.upload(f"model/{name}", b"data")
    puller.bucket.faults([])
    with pytest.raises(HostileName, match=reason):
        puller.pull()
    assert not puller.bucket.media_requests()


@given(st.text(max_size=60))
def test_a_name_that_passes_stays_inside_its_folder(name: str):
    try:
        check_names_together("gs://bucket", [ObjectInfo(name, 0)])
    except HostileName:
        return
    path = Path("/cache/folder") / name
    assert path.is_relative_to("/cache/folder")
    assert ".." not in path.parts
    assert path.relative_to("/cache/folder").as_posix() == name


URI = "gs://bucket"


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "a" * 200,
        "é" * 100,
        "/".join(["a" * 200] * 5) + "/" + "a" * 19,
        " ",
        "~",
        "a b",
        "\ud7ff",
        "\ue000",
        "...",
        ".a",
        "a.",
    ],
)
def test_a_name_within_the_limits_is_taken(name: str):
    check_name(URI, name)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty or too long"),
        ("/".join(["a" * 200] * 5) + "/" + "a" * 20, "empty or too long"),
        ("a" * 201, "more than 200 bytes"),
        ("é" * 101, "more than 200 bytes"),
        ("b/" + "a" * 201, "more than 200 bytes"),
        ("a\x1fb", "control character"),
        ("\x00", "control character"),
        ("a\x7f", "control character"),
        ("\ud800", "not valid Unicode"),
        ("a\udfff", "not valid Unicode"),
        ("a\\b", "backslash"),
        ("/a", "absolute"),
        ("..", "another folder"),
        ("a/./b", "another folder"),
        ("a//b", "empty folder name"),
        ("a/", "empty folder name"),
    ],
)
def test_a_name_beyond_a_limit_is_refused_with_the_limit(name: str, reason: str):
    with pytest.raises(HostileName, match=reason) as caught:
        check_name(URI, name)
    assert (caught.value.uri, caught.value.name) == (URI, name)


@pytest.mark.parametrize(
    "names",
    [
        ["a", "b"],
        ["a/b", "a/c", "ab", "a.b"],
        ["a", "a"],
        [".hidden", "x.part", "a.part/b", "data/complete.json", "COMPLETE.json.txt"],
        [".x.part/a"],
    ],
)
def test_names_that_can_be_files_of_one_folder_are_taken(names: list[str]):
    check_names_together(URI, [ObjectInfo(name, 0) for name in names])


@pytest.mark.parametrize(
    ("names", "refused", "reason"),
    [
        (["x", "Complete.JSON"], "Complete.JSON", "reserved"),
        (["data/.x.part"], "data/.x.part", "reserved"),
        (["a", "data/X", "data/x"], "data/x", "'data/X' in case only"),
        (["a", "a/b"], "a", "the folder of 'a/b'"),
        (["a/b/c", "A"], "a", "the folder of 'a/b/c'"),
        (["a/b/c/d", "a/b"], "a/b", "the folder of 'a/b/c/d'"),
        (["ok", "../x"], "../x", "another folder"),
    ],
)
def test_names_that_cannot_be_files_of_one_folder_are_named(names: list[str], refused: str, reason: str):
    with pytest.raises(HostileName, match=reason) as caught:
        check_names_together(URI, [ObjectInfo(name, 0) for name in names])
    assert (caught.value.uri, caught.value.name) == (URI, refused)


@pytest.mark.parametrize(
    ("encoding", "is_gzipped"), [("gzip", True), (" GZIP ", True), ("", False), ("br", False), ("gzip, br", False)]
)
def test_only_gzip_is_unpacked(encoding: str, is_gzipped: bool):
    assert ObjectInfo("a", 0, content_encoding=encoding).is_gzipped is is_gzipped


@pytest.mark.slow
def test_ten_thousand_objects_are_pulled_and_found_again_in_bounded_time(tmp_path: Path):
    """They are small, as an array store writes them."""
    command = [sys.executable, "-m", "tests.storage.many_objects_process", str(tmp_path)]
    subprocess.run(command, cwd=REPOSITORY, check=True, timeout=60)
