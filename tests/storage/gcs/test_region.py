"""A bucket in another region is said once, and only if both regions are known."""

import logging

import pytest

from service.storage.gcs.region import say_if_elsewhere
from service.storage.location import GcsLocation


@pytest.mark.parametrize(
    ("own", "status", "bucket", "is_said"),
    [
        ("projects/1/regions/us-east4", 200, b'{"location": "US-CENTRAL1", "locationType": "region"}', True),
        ("projects/1/regions/us-central1", 200, b'{"location": "US-CENTRAL1", "locationType": "region"}', False),
        ("projects/1/regions/us-east4", 200, b'{"location": "US", "locationType": "multi-region"}', False),
        ("projects/1/regions/us-east4", 403, b"{}", False),
    ],
)
def test_a_bucket_of_another_region_is_said(answers, caplog, own, status, bucket, is_said):
    answers.bodies += [own.encode(), bucket]
    host = answers.endpoint.removeprefix("http://")
    original = answers.do_GET

    def do_GET(handler):
        handler.status = 200 if "computeMetadata" in handler.path else status
        original(handler)

    answers.do_GET = do_GET
    with caplog.at_level(logging.WARNING):
        say_if_elsewhere(GcsLocation("bucket", "a"), answers.endpoint, metadata_host=host)
    assert ("another region" in caplog.text) == is_said
    assert answers.requests[1][0].startswith("/storage/v1/b/bucket?")


def test_outside_of_google_cloud_nothing_is_asked(answers, caplog):
    say_if_elsewhere(GcsLocation("bucket", "a"), answers.endpoint, metadata_host="127.0.0.1:1")
    assert (caplog.text, answers.requests) == ("", [])
