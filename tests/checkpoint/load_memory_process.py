"""Load a checkpoint's weights in int8; print as JSON their bytes, and the most that the process had above them.

python -m tests.checkpoint.load_memory_process FOLDER
"""

import json
import sys
from pathlib import Path

import jax

from service.checkpoint.discover import locate
from service.checkpoint.limits import LoadLimits
from service.checkpoint.load import load_on_host
from service.observability.progress import Progress
from service.settings import Settings
from service.start.kinds.engine_spec import choose_engine_spec
from service.storage.local import LocalSource


def memory_bytes(field: str) -> int:
    """Return a field of the process's memory; VmHWM is the peak of VmRSS. Source: man 5 proc."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{field}:")]
    return int(line.split()[1]) * 1024


settings = Settings(quantization="int8", max_num_seqs=1, max_model_len=256)
located = locate(sys.argv[1], LocalSource)
spec = choose_engine_spec(settings, located, jax.devices()[:1])
Path("/proc/self/clear_refs").write_text("5")
before_bytes = memory_bytes("VmRSS")
loaded = load_on_host(located, spec.specs, LoadLimits(None, Progress(), settings.stream_staging_bytes))
weights_bytes = sum(weight.nbytes for weight in loaded.weights.values())
above_bytes = memory_bytes("VmHWM") - before_bytes - weights_bytes
json.dump({"weights_bytes": weights_bytes, "above_bytes": above_bytes}, sys.stdout)
