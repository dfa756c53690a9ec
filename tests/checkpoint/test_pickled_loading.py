"""A checkpoint of pickled weights in a bucket: streamed, kept and verified like one of safetensors."""

import json
from collections.abc import Iterator

import pytest

from service.errors import MissingFile, RefusedPickle
from tests.checkpoint.streamed import CONFIG, TENSORS, Loader, same_weights
from tests.fault_proxy import Fault
from tests.gcs import GcsBucket
from tests.weights.pickled.corpus import EXECUTING
from tests.weights.pickled.written import archive, legacy, pickled, state

NAMES = list(TENSORS)
SHARDS = ("pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin")
INDEX = "pytorch_model.bin.index.json"
PARTS = {shard: {name: TENSORS[name] for name in NAMES[number::2]} for number, shard in enumerate(SHARDS)}


def written(names: dict, *, is_legacy: bool = False) -> bytes:
    value, storages = state(names)
    return legacy(value, storages, element_bytes=2) if is_legacy else archive(pickled(value), storages)


FILES = {
    "config.json": json.dumps(CONFIG).encode(),
    "tokenizer.json": b"{}",
    INDEX: json.dumps({"weight_map": {name: shard for shard in SHARDS for name in PARTS[shard]}}).encode(),
    SHARDS[0]: written(PARTS[SHARDS[0]]),
    SHARDS[1]: written(PARTS[SHARDS[1]], is_legacy=True),
}


@pytest.fixture
def pickled_loader(gcs_bucket: GcsBucket, tmp_path) -> Iterator[Loader]:
    for name, data in FILES.items():
        gcs_bucket.upload(f"pickled/{name}", data)
    yield Loader(gcs_bucket.endpoint, gcs_bucket.name, tmp_path / "cache", prefix="pickled")
    gcs_bucket.faults([])


def test_shards_of_both_formats_stream_from_a_bucket(pickled_loader: Loader):
    assert same_weights(pickled_loader.load(is_cached=False))


def test_a_cache_keeps_the_files_and_serves_the_next_start(pickled_loader: Loader, gcs_bucket: GcsBucket):
    assert same_weights(pickled_loader.load())
    [kept] = pickled_loader.visible()
    assert (kept / SHARDS[0]).read_bytes() == FILES[SHARDS[0]]
    gcs_bucket.faults([Fault(r"\.bin\?alt=media", times=1000, status=404)])
    assert same_weights(pickled_loader.load())


@pytest.mark.parametrize("skip", [0, 1, 2, 3])
@pytest.mark.parametrize("flipped", [5, 40])
def test_a_bit_that_flips_once_leaves_the_right_weights(
    pickled_loader: Loader, gcs_bucket: GcsBucket, skip: int, flipped: int
):
    gcs_bucket.faults([Fault(f"{SHARDS[0]}.*alt=media", skip=skip, flipped_byte=flipped)])
    assert same_weights(pickled_loader.load(is_cached=False))
    assert gcs_bucket.hits()


def test_a_shard_that_would_run_code_is_refused_before_a_weight_is_read(pickled_loader: Loader, gcs_bucket: GcsBucket):
    gcs_bucket.upload(f"pickled/{SHARDS[1]}", EXECUTING["the canary"][0])
    with pytest.raises(RefusedPickle, match=r"asks for 'tests\.weights") as caught:
        pickled_loader.load()
    assert caught.value.file == SHARDS[1]
    assert not pickled_loader.visible()


def test_a_shard_that_is_missing_is_named(pickled_loader: Loader, gcs_bucket: GcsBucket):
    gcs_bucket.delete(f"pickled/{SHARDS[1]}")
    with pytest.raises(MissingFile, match=f"{INDEX} names '{SHARDS[1]}'"):
        pickled_loader.locate()
