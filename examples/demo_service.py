"""The demo model, or another one, served for the time of an example."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[1]
START_TIMEOUT_S = 300


@contextlib.contextmanager
def demo_service(**settings: str) -> Iterator[str]:
    """Serve the demo model on a free port, and yield its address once it answers; `settings` may name another model.

    Raises:
        SystemExit: The service ended, or did not answer in time; it has printed why.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"HOST": "127.0.0.1", "PORT": str(port), "LOG_LEVEL": "WARNING"} | settings
    process = subprocess.Popen([sys.executable, "-m", "service", "serve"], cwd=ROOT, env=environment)
    try:
        url = f"http://127.0.0.1:{port}"
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > give_up_at:
                raise SystemExit("The demo service has not started; see its messages above.")
            time.sleep(0.2)
        yield url
    finally:
        process.terminate()
        process.wait()


def _answers(url: str) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return httpx.get(f"{url}/health/ready").status_code == httpx.codes.OK
    return False
