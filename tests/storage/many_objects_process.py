"""Pull ten thousand small objects of a bucket without a network, and find them again in the cache.

python -m tests.storage.many_objects_process CACHE
"""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.observability.progress import Progress
from service.storage import crc32c
from service.storage.cache.cache import CheckpointCache
from service.storage.objects import ObjectInfo
from service.storage.retry import RetryBudget, TransferLimits

NAMES = [f"model/c/{index // 100}/{index % 100}" for index in range(10_000)]


class ManyObjects:
    """A bucket whose objects hold their own names; counts the ranges that are opened."""

    uri = "gs://many/objects"
    limits = TransferLimits(deadline_s=60.0)
    num_opened = 0

    @contextmanager
    def open_range(self, info: ObjectInfo, start: int, num_bytes: int, budget: RetryBudget) -> Iterator[io.BytesIO]:
        self.num_opened += 1
        yield io.BytesIO(info.name.encode()[start : start + num_bytes])


def main() -> None:
    objects = [ObjectInfo(name, len(name), crc32c.to_text(crc32c.extend(0, name.encode())), 1) for name in NAMES]
    cache = CheckpointCache(Path(sys.argv[1]), max_checkpoints=1)
    for is_cached in (False, True):
        bucket = ManyObjects()
        pulled = cache.pull(bucket, objects, Progress())
        assert (bucket.num_opened == 0) == is_cached
        assert all((pulled.path / name).read_text() == name for name in NAMES)
        pulled.release()


if __name__ == "__main__":
    main()
