"""Load the tiny Llama, print whether its weights are right, and hold its files until the input ends.

python -m tests.checkpoint.load_process ENDPOINT BUCKET CACHE
"""

import sys
from pathlib import Path

from tests.checkpoint.streamed import Loader, same_weights

endpoint, bucket, root = sys.argv[1:]
loader = Loader(endpoint, bucket, Path(root))
loaded = loader.load(num_workers=2, deadline_s=60.0, read_timeout_s=5.0)
print("right" if same_weights(loaded) else "wrong", flush=True)
sys.stdin.read()
