"""A process that pulls ten thousand small objects of a bucket without a network, twice, and prints how long each took.

python -m tests.storage.many_objects_process CACHE
"""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from service.storage import crc32c
from service.storage.cache.cache import CheckpointCache
from service.storage.objects import ObjectInfo
from service.storage.progress import Progress
from service.storage.retry import Patience, TransferLimits

NAMES = [f"model/c/{index // 100}/{index % 100}" for index in range(10_000)]


class ManyObjects:
    """The name of each object is what it holds."""

    uri = "gs://many/objects"
    limits = TransferLimits(deadline_s=60.0)

    def stream(
        self, info: ObjectInfo, start: int, length: int, room: Callable[[], memoryview], patience: Patience
    ) -> Iterator[int]:
        room()[:length] = info.name.encode()[start : start + length]
        yield length


def main() -> None:
    objects = [ObjectInfo(name, len(name), crc32c.to_text(crc32c.extend(0, name.encode())), 1) for name in NAMES]
    cache = CheckpointCache(Path(sys.argv[1]), max_checkpoints=1)
    for _ in range(2):
        started_at = time.monotonic()
        pulled = cache.pull(ManyObjects(), objects, Progress())
        print(time.monotonic() - started_at)
        assert all((pulled.path / name).read_text() == name for name in NAMES)
        pulled.release()


if __name__ == "__main__":
    main()
