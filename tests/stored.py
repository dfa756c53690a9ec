"""A small checkpoint in a bucket, and a puller with small limits."""

import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from service.observability.progress import Progress
from service.storage.cache.cache import CheckpointCache, PulledCheckpoint
from service.storage.gcs.read import GcsSource
from service.storage.location import GcsLocation
from service.storage.retry import TransferLimits
from tests.gcs import GcsBucket

if TYPE_CHECKING:
    from tests.checkpoint.streamed import Loader


REPOSITORY = Path(__file__).parents[1]

SLICE_BYTES = 64 * 1024
WEIGHTS = random.Random(0).randbytes(5 * SLICE_BYTES + 777)  # six slices, the last one short
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": WEIGHTS,
    "data/one/0.0": random.Random(1).randbytes(1000),
}


def quick_limits(**changes) -> TransferLimits:
    """Return limits under which a fault fails within seconds."""
    values = {
        "deadline_s": 20.0,
        "connect_timeout_s": 1.0,
        "read_timeout_s": 0.5,
        "max_attempts": 4,
        "outage_s": 0.0,
        "max_wait_s": 0.05,
        "min_bytes_per_s": 1000,
        "slow_window_s": 0.5,
        "num_workers": 4,
        "slice_bytes": SLICE_BYTES,
    }
    return TransferLimits(**(values | changes))


@dataclass
class Puller:
    """Pulls the test checkpoint from its bucket into a cache."""

    bucket: GcsBucket
    root: Path
    prefix: str = "model"
    max_checkpoints: int = 2
    progress: Progress = field(default_factory=Progress)

    def source(self, **limits) -> GcsSource:
        location = GcsLocation(self.bucket.name, self.prefix)
        return GcsSource(location, emulator_host=self.bucket.endpoint, limits=quick_limits(**limits))

    def cache(self, **options) -> CheckpointCache:
        return CheckpointCache(self.root, max_checkpoints=self.max_checkpoints, **options)

    def pull(self, before_pull: Callable[[], None] = lambda: None, **limits) -> PulledCheckpoint:
        with self.source(**limits) as source:
            objects = source.list()
            before_pull()
            return source.pull(objects, self.cache(), self.progress)

    def visible(self) -> list[Path]:
        """The checkpoints that a reader of the cache would take for complete."""
        return [record.parent for record in self.root.glob("checkpoints/*/COMPLETE.json")]


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a pulled folder, without the cache's own."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "COMPLETE.json"
    }


@pytest.fixture
def puller(gcs_bucket: GcsBucket, tmp_path: Path) -> Puller:
    """The files of FILES in a bucket, and an empty cache."""
    for name, data in FILES.items():
        gcs_bucket.upload(f"model/{name}", data)
    return Puller(gcs_bucket, tmp_path / "cache")


@pytest.fixture
def loader(gcs_bucket: GcsBucket, tmp_path: Path) -> "Loader":
    """A checkpoint of real weights in a bucket, to be streamed; an empty cache."""
    from tests.checkpoint.streamed import OBJECTS, Loader

    for name, data in OBJECTS.items():
        gcs_bucket.upload(f"llama/{name}", data)
    return Loader(gcs_bucket.endpoint, gcs_bucket.name, tmp_path / "cache")


@pytest.fixture
def spawn() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Run modules as processes with pipes; all are killed at the end."""
    processes = []

    def spawn_one(module: str, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )
        processes.append(process)
        return process

    yield spawn_one
    for process in processes:
        process.kill()
        process.communicate()
