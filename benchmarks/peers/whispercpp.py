"""whisper.cpp, greedy, with weights in float16, no HTTP: one file after the other, each with all threads.

python -m benchmarks.peers.whispercpp FILE THREADS
"""

import sys
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from benchmarks.peers.worker import Generate, run_worker


def load() -> tuple[Mapping[str, Generate], dict[str, Any]]:
    """Load the model of the command line."""
    from pywhispercpp.model import Model

    greedy = {"language": "en", "greedy": {"best_of": 1}, "print_progress": False, "print_realtime": False}
    model = Model(sys.argv[1], n_threads=int(sys.argv[2]), **greedy)

    def transcribe(paths: Any, _: int) -> dict[str, Any]:
        heard = [model.transcribe(path) for path in paths]
        return {"texts": [" ".join(segment.text.strip() for segment in segments) for segments in heard]}

    return {"transcribe": transcribe}, {"pywhispercpp": version("pywhispercpp")}


if __name__ == "__main__":
    run_worker(load)
