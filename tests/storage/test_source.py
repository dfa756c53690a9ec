"""Every kind of address opens with the limits that suit it, whether or not the caller names some."""

from pathlib import Path

from service.observability.progress import Progress
from service.storage.cache.cache import CheckpointCache
from service.storage.location import GcsLocation
from service.storage.source import open_source
from tests.stored import FILES, Puller, contents


def test_a_bucket_is_read_and_pulled_with_the_usual_limits(puller: Puller, tmp_path: Path):
    location = GcsLocation(puller.bucket.name, puller.prefix)
    source = open_source(location, cache_root=tmp_path, emulator_host=puller.bucket.endpoint)
    objects = source.list()
    config = next(info for info in objects if info.name == "config.json")
    assert source.read(config) == FILES["config.json"]
    pulled = source.pull(objects, CheckpointCache(tmp_path / "cache", max_checkpoints=1), Progress())
    assert contents(pulled.path) == FILES
    source.close()
