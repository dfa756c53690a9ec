"""Names that would lead outside the cache are refused, before anything is downloaded."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import HostileName
from service.storage.objects import ObjectInfo, check_name, check_names_together
from tests.stored import Puller

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
