"""Pull the test checkpoint, print its folder, and hold it until the input ends.

python -m tests.storage.pull_process ENDPOINT BUCKET PREFIX CACHE
"""

import sys
from pathlib import Path

from service.observability.progress import Progress
from service.storage.cache.cache import CheckpointCache
from service.storage.gcs.read import GcsSource
from service.storage.location import GcsLocation
from service.storage.retry import TransferLimits

endpoint, bucket, prefix, root = sys.argv[1:]
limits = TransferLimits(deadline_s=60, num_workers=2, slice_bytes=64 * 1024)
with GcsSource(GcsLocation(bucket, prefix), emulator_host=endpoint, limits=limits) as source:
    pulled = source.pull(source.list(), CheckpointCache(Path(root), max_checkpoints=2), Progress())
print(pulled.path, flush=True)
sys.stdin.read()
