"""Objects of a bucket at generations that an operator has pinned."""

import pytest
import requests

from service.errors import GenerationGone
from service.settings import Settings
from service.start.discover import opener
from service.storage.gcs.read import GcsSource
from service.storage.location import GcsLocation, parse_location
from tests.stored import quick_limits


@pytest.fixture
def versioned_bucket(gcs_bucket):
    """The bucket, which keeps what is overwritten from now on."""
    url = f"{gcs_bucket.server.direct_url}/storage/v1/b/{gcs_bucket.name}"
    requests.patch(url, json={"versioning": {"enabled": True}}, timeout=30).raise_for_status()
    return gcs_bucket


def source(bucket, **generations):
    location = GcsLocation(bucket.name, "model")
    return GcsSource(location, emulator_host=bucket.endpoint, limits=quick_limits(), generations=generations)


def upload(bucket, text, name="weights"):
    """Store an object and return its generation."""
    bucket.upload(f"model/{name}", text)
    with source(bucket) as live:
        return next(info.generation for info in live.list() if info.name == name)


def contents(bucket, **generations):
    with source(bucket, **generations) as pinned:
        return {info.name: (info.generation, pinned.read(info)) for info in pinned.list()}


def test_an_overwritten_generation_is_listed_and_read(versioned_bucket):
    config = upload(versioned_bucket, b"{}", "config")
    first = upload(versioned_bucket, b"first")
    second = upload(versioned_bucket, b"second and longer")
    assert contents(versioned_bucket, weights=first) == {"config": (config, b"{}"), "weights": (first, b"first")}
    assert contents(versioned_bucket, weights=second)["weights"] == (second, b"second and longer")


def test_a_generation_is_served_after_the_object_was_deleted(versioned_bucket):
    generation = upload(versioned_bucket, b"first")
    versioned_bucket.delete("model/weights")
    assert contents(versioned_bucket, weights=generation) == {"weights": (generation, b"first")}


def test_a_generation_that_the_bucket_did_not_keep_is_refused_by_name(gcs_bucket):
    first = upload(gcs_bucket, b"first")
    upload(gcs_bucket, b"second")
    with source(gcs_bucket, weights=first) as pinned, pytest.raises(GenerationGone, match="weights has no") as caught:
        pinned.list()
    assert (caught.value.name, caught.value.generation) == ("weights", first)


def test_a_listing_costs_one_more_request_for_each_generation_that_is_not_live(gcs_bucket):
    live = upload(gcs_bucket, b"first")
    gcs_bucket.faults([])
    contents(gcs_bucket, weights=live)
    assert len(gcs_bucket.requests()) == 2  # the listing, and the bytes


def test_generations_are_those_of_the_checkpoint_and_of_no_other_address(gcs_bucket, tmp_path):
    first = upload(gcs_bucket, b"first")
    settings = Settings(
        model_uri=gcs_bucket.uri("model"), storage_emulator_host=gcs_bucket.endpoint, local_model_cache=tmp_path
    )
    upload(gcs_bucket, b"second")
    gcs_bucket.upload("tokenizer/weights", b"other")
    open_pinned = opener(settings, {"weights": first})
    with pytest.raises(GenerationGone):
        open_pinned(parse_location(gcs_bucket.uri("model"))).list()
    assert len(open_pinned(parse_location(gcs_bucket.uri("tokenizer"))).list()) == 1
