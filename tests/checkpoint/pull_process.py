"""A process that pulls the test checkpoint, says where it lies, and holds it until its input ends.

python -m tests.checkpoint.pull_process ENDPOINT BUCKET PREFIX CACHE
"""

import sys
from pathlib import Path

from service.checkpoint.cache import CheckpointCache
from service.checkpoint.gcs import GcsSource
from service.checkpoint.location import GcsLocation
from service.checkpoint.progress import Progress
from service.checkpoint.transfer import TransferLimits

endpoint, bucket, prefix, root = sys.argv[1:]
limits = TransferLimits(deadline_s=60, num_workers=2, slice_bytes=64 * 1024)
with GcsSource(GcsLocation(bucket, prefix), emulator_host=endpoint, limits=limits) as source:
    pulled = source.pull(source.list(), CheckpointCache(Path(root), max_checkpoints=2), Progress())
print(pulled.path, flush=True)
sys.stdin.read()
