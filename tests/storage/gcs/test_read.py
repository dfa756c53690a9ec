"""Listings page by page, and ranges that are what was asked for."""

import json
import time
from urllib.parse import parse_qs, urlsplit

import pytest

from service.errors import (
    CheckpointNotFound,
    CorruptObject,
    HostileName,
    MalformedCheckpoint,
    ObjectChanged,
    TransferFailed,
)
from service.storage.crc32c import extend, to_text
from service.storage.gcs import read as gcs_read
from service.storage.gcs.read import GcsSource
from service.storage.location import GcsLocation
from service.storage.objects import ObjectInfo, read_range
from service.storage.retry import RetryBudget
from tests.stored import quick_limits

DATA = b"0123456789"
SUM = to_text(extend(0, DATA))
INFO = ObjectInfo("a/b c.bin", 10, crc32c=SUM, generation=7)


@pytest.fixture
def source(answers):
    with GcsSource(
        GcsLocation("my-bucket", "model"), emulator_host=answers.endpoint, limits=quick_limits(max_attempts=2)
    ) as source:
        yield source


def page(*items: dict, token: str | None = None) -> bytes:
    return json.dumps({"items": list(items)} | ({"nextPageToken": token} if token else {})).encode()


def item(name: str, **changes) -> dict:
    return {"name": f"model/{name}", "size": "10", "generation": "7", "crc32c": SUM} | changes


def test_a_listing_is_read_page_by_page(answers, source):
    answers.bodies += [
        page(item("a/b c.bin"), item("folder/"), token="next"),
        page(token="last"),
        page(item("c", size="0", contentEncoding="gzip")),
    ]
    assert source.list() == (INFO, ObjectInfo("c", 0, crc32c=SUM, generation=7, content_encoding="gzip"))
    paths = [urlsplit(path) for path, _ in answers.requests]
    assert {path.path for path in paths} == {"/storage/v1/b/my-bucket/o"}
    first, second, third = (parse_qs(path.query) for path in paths)
    assert first == {
        "prefix": ["model/"],
        "fields": ["nextPageToken,items(name,size,crc32c,generation,contentEncoding)"],
        "maxResults": ["1000"],
    }
    assert second == first | {"pageToken": ["next"]}
    assert third == first | {"pageToken": ["last"]}


def test_a_whole_bucket_has_no_prefix(answers):
    answers.body = page(item("a") | {"name": "a"})
    location = GcsLocation("my-bucket", "")
    with GcsSource(location, emulator_host=answers.endpoint, limits=quick_limits()) as source:
        assert [info.name for info in source.list()] == ["a"]
    assert parse_qs(urlsplit(answers.requests[0][0]).query, keep_blank_values=True)["prefix"] == [""]


def test_a_listing_that_is_no_json_is_asked_for_again(answers, source):
    answers.bodies += [b"not json"]
    answers.body = page(item("a"))
    assert len(source.list()) == 1
    answers.body = b"not json"
    with pytest.raises(TransferFailed, match="listing: the listing is not JSON") as caught:
        source.list()
    assert caught.value.uri == "gs://my-bucket/model"


@pytest.mark.parametrize(
    ("body", "kind", "reason"),
    [
        (page(), CheckpointNotFound, "no object lies below"),
        (b"{}", CheckpointNotFound, "no object lies below"),
        (page(item("x/")), CheckpointNotFound, "no object lies below"),
        (page(item("a", crc32c="")), TransferFailed, "a: the listing has no crc32c"),
        (page(item("../a")), HostileName, "another folder"),
    ],
)
def test_a_listing_of_nothing_that_can_be_served_is_refused(answers, source, body, kind, reason):
    answers.body = body
    with pytest.raises(kind, match=reason) as caught:
        source.list()
    assert caught.value.uri == "gs://my-bucket/model"


def answer_range(answers, start: int, end: int, **headers: str) -> None:
    answers.status, answers.body = 206, DATA[start:end]
    answers.headers_sent = {"Content-Range": f"bytes {start}-{end - 1}/10"} | headers


def ranged(source, start: int, end: int) -> bytes:
    return read_range(source, INFO, start, end - start, RetryBudget(source.limits))


def test_a_range_is_asked_for_in_its_version_as_it_is_stored(answers, source):
    answer_range(answers, 2, 6)
    assert ranged(source, 2, 6) == b"2345"
    [(path, headers)] = answers.requests
    assert path == "/storage/v1/b/my-bucket/o/model%2Fa%2Fb%20c.bin?alt=media&generation=7"
    assert (headers["Range"], headers["Accept-Encoding"]) == ("bytes=2-5", "gzip")


def test_a_whole_object_may_come_without_being_called_a_range(answers, source):
    answers.body = DATA
    assert ranged(source, 0, 10) == DATA


def test_a_whole_object_in_place_of_a_range_is_refused(answers, source):
    answers.body = DATA
    for start, end in ((0, 9), (1, 10), (2, 6)):
        with pytest.raises(TransferFailed, match="the whole object instead of a range") as caught:
            ranged(source, start, end)
        assert (caught.value.uri, caught.value.name) == ("gs://my-bucket/model", INFO.name)
    answers.body = DATA + b"more"
    with pytest.raises(TransferFailed, match="the whole object instead of a range"):
        ranged(source, 0, 10)


@pytest.mark.parametrize("received", ["bytes 2-6/10", "bytes 1-5/10", "bytes 2-5/11", ""])
def test_another_range_is_refused(answers, source, received):
    answer_range(answers, 2, 6, **{"Content-Range": received})
    with pytest.raises(TransferFailed, match="a range that was not requested"):
        ranged(source, 2, 6)


def test_another_version_is_never_read(answers, source):
    answer_range(answers, 2, 6, **{"X-Goog-Generation": "7"})
    assert ranged(source, 2, 6) == b"2345"
    answer_range(answers, 2, 6, **{"X-Goog-Generation": "8"})
    with pytest.raises(ObjectChanged) as caught:
        ranged(source, 2, 6)
    assert (caught.value.uri, caught.value.name, caught.value.generation) == ("gs://my-bucket/model", INFO.name, 7)
    assert len(answers.requests) == 2


def test_an_object_is_read_whole_twice_before_its_sum_counts_as_wrong(answers, source):
    answers.bodies += [b"x" * 10]
    answers.body = DATA
    assert source.read(INFO) == DATA
    answers.body = b"x" * 10
    with pytest.raises(CorruptObject) as caught:
        source.read(INFO)
    assert len(answers.requests) == 4
    assert (caught.value.uri, caught.value.name) == ("gs://my-bucket/model", INFO.name)
    assert (caught.value.expected, caught.value.actual) == (SUM, to_text(extend(0, b"x" * 10)))


def test_a_file_too_large_to_be_read_whole_is_refused(answers, source, monkeypatch):
    monkeypatch.setattr(gcs_read, "MAX_READ_BYTES", 10)
    answers.body = DATA
    assert source.read(INFO) == DATA
    monkeypatch.setattr(gcs_read, "MAX_READ_BYTES", 9)
    with pytest.raises(MalformedCheckpoint, match="10 bytes are too many") as caught:
        source.read(INFO)
    assert (caught.value.uri, caught.value.file) == ("gs://my-bucket/model", INFO.name)


def test_a_closed_source_has_no_connection_open(answers, source):
    answers.body = page(item("a"))
    source.list()
    assert not answers.num_ended
    source.close()
    deadline = time.monotonic() + 30
    while not answers.num_ended:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_quarter_of_a_gigabyte_is_the_most_that_is_read_whole(answers, source):
    with pytest.raises(MalformedCheckpoint, match="268,435,457 bytes are too many"):
        source.read(ObjectInfo("config.json", 256 * 1024 * 1024 + 1, crc32c=SUM))
    assert answers.requests == []
