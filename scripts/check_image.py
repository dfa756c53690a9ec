"""Takes an image through what a platform does to it, and prints sizes and times.

`python scripts/check_image.py IMAGE`, where Docker is; another engine with `--engine podman` and its options with
`--option`. The demo model is served, so it needs neither a bucket nor an accelerator.
"""

import argparse
import http.client
import json
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

ROOT = Path(__file__).resolve().parent.parent
START_TIMEOUT_S = 600
STOP_TIMEOUT_S = 30
MODEL = "levserve-demo"
WAYS = {
    "as it is": [],
    "read-only, unknown uid": ["--read-only", "--tmpfs=/tmp:rw,size=64m", "--user=12345:12345"],
}


class Container:
    """A container of the image, in the foreground of the engine's `run`."""

    def __init__(self, engine: list[str], image: str, options: list[str], log: IO[str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.began_s = time.monotonic()
        settings = {"HOST": "127.0.0.1", "PORT": self.port, "LOG_FORMAT": "json"}
        flags = ["--rm", "--init=false", "--network=host", *options]
        flags += [f"--env={name}={value}" for name, value in settings.items()]
        self.name = f"levserve-check-{self.port}"
        self._log = log
        self.process = subprocess.Popen([*engine, "run", f"--name={self.name}", *flags, image], stdout=log)

    def seconds_until(self, path: str) -> float:
        """Wait for 200 on a path; return the seconds since the container was asked for."""
        while time.monotonic() - self.began_s < START_TIMEOUT_S:
            if self.process.poll() is not None:
                sys.exit(f"the container ended with {self.process.returncode}:\n{self.log()}")
            try:
                if self.ask("GET", path).status == 200:
                    return time.monotonic() - self.began_s
            except OSError:
                pass
            time.sleep(0.05)
        sys.exit(f"{path} is not 200 after {START_TIMEOUT_S} s")

    def ask(self, method: str, path: str, document: object = None) -> http.client.HTTPResponse:
        """Send a request and return the answer, whose body is still to be read."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        body = None if document is None else json.dumps(document)
        connection.request(method, path, body, {"Content-Type": "application/json"})
        return connection.getresponse()

    def log(self) -> str:
        """Return what the container has printed so far."""
        self._log.seek(0)
        return self._log.read()


@contextmanager
def running(engine: list[str], image: str, options: list[str]) -> Iterator[Container]:
    """Start a container, and end it whatever happens."""
    # The log goes to a file: a pipe would fill up, since nobody reads it while the container runs.
    with tempfile.TemporaryFile("w+") as log:
        container = Container(engine, image, options, log)
        try:
            yield container
        finally:
            container.process.kill()
            container.process.wait()
            # The engine's `run` is only a client; what it started may have outlived it.
            subprocess.run([*engine, "rm", "--force", container.name], capture_output=True, check=False)


def main() -> None:
    """Print what is found; exit with 1 at the first thing that is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("image")
    parser.add_argument("--engine", default="docker", help="the engine with its global options; default: docker")
    parser.add_argument("--option", action="append", default=[], help="an option of the engine's run")
    arguments = parser.parse_args()
    engine = shlex.split(arguments.engine)
    print_sizes(engine, arguments.image)
    for way, options in WAYS.items():
        with running(engine, arguments.image, [*arguments.option, *options]) as container:
            live_s = container.seconds_until("/health/live")
            ready_s = container.seconds_until("/health/ready")
            smoke(container)
            drain_s = drain(container)
        print(f"{way}: live after {live_s:.1f} s, ready after {ready_s:.1f} s, smoke test green", end="")
        print(f", drained a running stream and ended with 0 in {drain_s:.1f} s")


def print_sizes(engine: list[str], image: str) -> None:
    """Print the unpacked size of the image and of its layers."""
    command = [*engine, "history", "--no-trunc", "--format", "{{.Size}}\t{{.CreatedBy}}", image]
    history = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for line in history.splitlines():
        size, _, made_by = line.partition("\t")
        if not size.startswith("0"):
            print(f"{size:>10}  {made_by[:100]}")


def smoke(container: Container) -> None:
    """Run the smoke test against the container.

    Raises:
        CalledProcessError: it is red.
    """
    command = [sys.executable, "-m", "service", "smoke", f"http://127.0.0.1:{container.port}", "--model", MODEL]
    subprocess.run(command, check=True, cwd=ROOT)


def drain(container: Container) -> float:
    """Stop the container in the middle of a stream; return the seconds until it has ended with 0."""
    asked = {"model": MODEL, "prompt": "Count", "max_tokens": 900, "stream": True, "ignore_eos": True}
    stream = container.ask("POST", "/v1/completions", asked)
    stream.readline()
    began_s = time.monotonic()
    container.process.terminate()
    events = [line for line in stream.read().split(b"\n\n") if line.strip()]
    code = container.process.wait(STOP_TIMEOUT_S)
    if code != 0 or events[-1] != b"data: [DONE]":
        sys.exit(f"ended with {code}, the stream's last event is {events[-1]!r}:\n{container.log()}")
    return time.monotonic() - began_s


if __name__ == "__main__":
    main()
