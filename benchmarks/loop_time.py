"""CPU time of streaming: milliseconds per 1000 streamed tokens, with the demo model.

    python -m benchmarks.loop_time --streams 32

It reports the event loop's thread (HTTP, JSON, text) and the whole process, whose remainder is the device.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.contenders import HttpServer, free_port

MODEL = "levserve-demo"


def measure(num_streams: int, num_tokens: int, num_waves: int, cache: Path) -> dict[str, float]:
    """Start a server and send it waves of streams; return median milliseconds per 1000 tokens."""
    port = free_port()
    settings = {
        "MAX_NUM_SEQS": str(num_streams),
        "LOCAL_MODEL_CACHE": str(cache),
        "LOG_FORMAT": "json",
        "READY_WHEN": "complete",
    }
    server = HttpServer(
        [sys.executable, "-m", "service", "serve"],
        port,
        cache / "loop_time.log",
        model=MODEL,
        ready_path="/health/ready",
        environment=settings | {"HOST": "127.0.0.1", "PORT": str(port)},
    )
    try:
        waves = [_wave(server, num_streams, num_tokens) for _ in range(num_waves + 1)][1:]
    finally:
        server.close()
    return {name: round(statistics.median(wave[name] for wave in waves), 3) for name in waves[0]}


def _wave(server: HttpServer, num_streams: int, num_tokens: int) -> dict[str, float]:
    before, began_s = _cpu_s(server.pid), time.perf_counter()
    _, answers = server.send([server.call([5 + i], num_tokens) for i in range(num_streams)])
    after, ended_s = _cpu_s(server.pid), time.perf_counter()
    thousands = num_streams * num_tokens / 1000
    return {
        "loop_cpu_ms": 1000 * (after[0] - before[0]) / thousands,
        "process_cpu_ms": 1000 * (after[1] - before[1]) / thousands,
        "tokens_per_s": 1000 * thousands / (ended_s - began_s),
        "events": sum(len(answer.event_s) for answer in answers) / thousands,
    }


def _cpu_s(pid: int) -> tuple[float, float]:
    """Return the CPU seconds of a process's main thread, which runs the event loop, and of the whole process."""
    process = psutil.Process(pid)
    [loop] = [thread for thread in process.threads() if thread.id == pid]
    times = process.cpu_times()
    return loop.user_time + loop.system_time, times.user + times.system


def main() -> None:
    """Print the figures as one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--waves", type=int, default=5)
    parser.add_argument("--cache", type=Path, help="folder that keeps compiled executables for the next run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cache = options.cache or Path(folder)
        cache.mkdir(parents=True, exist_ok=True)
        print(json.dumps(measure(options.streams, options.tokens, options.waves, cache)))


if __name__ == "__main__":
    main()
