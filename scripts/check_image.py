"""Check an image as a platform uses it, and print sizes and times.

    python scripts/check_image.py IMAGE

This needs Docker, or another engine with `--engine podman` and its options with `--option`. It serves the demo model,
so it needs neither a bucket nor an accelerator. With `--prewarm-image IMAGE` and `--levanter-run FOLDER`, that image
converts a Levanter run of the demo model and the first image serves it.
"""

import argparse
import http.client
import json
import re
import secrets
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
LOCKED = ["--read-only", "--tmpfs=/tmp:rw,size=64m", "--user=12345:12345"]
WAYS = {"as it is": [], "read-only, unknown uid": LOCKED}
KEPT, RUN = "/cache", "/run-of-levanter"  # paths in the container


class Container:
    """A container of the image, run by the engine in the foreground."""

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
        """Wait until a path returns 200; return the seconds since the container was started."""
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
        """Send a request and return the response before its body is read."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        body = None if document is None else json.dumps(document)
        connection.request(method, path, body, {"Content-Type": "application/json"})
        return connection.getresponse()

    def log(self) -> str:
        """Return the output of the container so far."""
        self._log.seek(0)
        return self._log.read()


@contextmanager
def running(engine: list[str], image: str, options: list[str]) -> Iterator[Container]:
    """Run a container; always stop and remove it at the end."""
    # The log goes to a file: an unread pipe would fill up while the container runs.
    with tempfile.TemporaryFile("w+") as log:
        container = Container(engine, image, options, log)
        try:
            yield container
        finally:
            container.process.kill()
            container.process.wait()
            # The engine's `run` is only a client; the container may outlive it.
            subprocess.run([*engine, "rm", "--force", container.name], capture_output=True, check=False)


def main() -> None:
    """Print the results; exit with 1 at the first failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("image")
    parser.add_argument("--engine", default="docker", help="the engine with its global options; default: docker")
    parser.add_argument("--option", action="append", default=[], help="an option of the engine's run")
    parser.add_argument("--prewarm-image", metavar="IMAGE", help="the image of the target `prewarm`")
    parser.add_argument("--levanter-run", metavar="FOLDER", type=Path, help="a Levanter run of the demo model")
    arguments = parser.parse_args()
    if (arguments.prewarm_image is None) != (arguments.levanter_run is None):
        parser.error("--prewarm-image and --levanter-run must be given together")
    engine, image = shlex.split(arguments.engine), arguments.image
    print_sizes(engine, image)
    expect_native_code(engine, image, arguments.option)
    for way, options in WAYS.items():
        journey(engine, image, [*arguments.option, *options], way)
    with kept_folder(engine) as options:
        options += [*arguments.option, *LOCKED, f"--env=LOCAL_MODEL_CACHE={KEPT}"]
        prewarm(engine, image, options)
        journey(engine, image, options, "with its bundle", is_warm=True)
    if arguments.levanter_run is not None:
        print_sizes(engine, arguments.prewarm_image)
        with kept_folder(engine) as options:
            model = [f"--volume={arguments.levanter_run.resolve()}:{RUN}:ro", f"--env=MODEL_URI={RUN}"]
            options += [*arguments.option, *LOCKED, *model, f"--env=MODEL_NAME={MODEL}", f"--env=BUNDLE_URI={KEPT}"]
            prewarm(engine, arguments.prewarm_image, options)
            journey(engine, image, options, "a Levanter run, served without Levanter", is_warm=True)


def journey(engine: list[str], image: str, options: list[str], way: str, *, is_warm: bool = False) -> None:
    """Start a container, test it, stop it, and print the duration of each."""
    with running(engine, image, options) as container:
        live_s = container.seconds_until("/health/live")
        ready_s = container.seconds_until("/health/ready")
        if is_warm:
            expect_no_compilation(container)
        smoke(container)
        drain_s = drain(container)
    print(f"{way}: live after {live_s:.1f} s, ready after {ready_s:.1f} s, smoke test green", end="")
    print(f", drained a running stream and ended with 0 in {drain_s:.1f} s", flush=True)


@contextmanager
def kept_folder(engine: list[str]) -> Iterator[list[str]]:
    """Yield the option that mounts a new volume at `KEPT`; remove the volume at the end."""
    name = f"levserve-check-{secrets.token_hex(4)}"
    subprocess.run([*engine, "volume", "create", name], check=True, stdout=subprocess.DEVNULL)
    try:
        yield [f"--volume={name}:{KEPT}"]
    finally:
        subprocess.run([*engine, "volume", "rm", name], check=True, stdout=subprocess.DEVNULL)


def prewarm(engine: list[str], image: str, options: list[str]) -> None:
    """Make the bundle in a separate container.

    Raises:
        CalledProcessError: the prewarm failed.
    """
    began_s = time.monotonic()
    subprocess.run([*engine, "run", "--rm", *options, image, "prewarm"], check=True, stdout=subprocess.DEVNULL)
    print(f"levserve prewarm: {time.monotonic() - began_s:.1f} s", flush=True)


def expect_no_compilation(container: Container) -> None:
    """Exit unless the start found its bundle and compiled nothing."""
    series = container.ask("GET", "/metrics").read().decode()
    found = dict(re.findall(r"^(levserve_(?:xla_compiles_total|bundle_load_total\S+)) (\S+)$", series, re.MULTILINE))
    if found != {"levserve_xla_compiles_total": "0.0", 'levserve_bundle_load_total{outcome="hit"}': "1.0"}:
        sys.exit(f"the start compiled: {found}\n{container.log()}")


def print_sizes(engine: list[str], image: str) -> None:
    """Print the unpacked size of the image and of its layers."""
    command = [*engine, "history", "--no-trunc", "--format", "{{.Size}}\t{{.CreatedBy}}", image]
    history = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for line in history.splitlines():
        size, _, made_by = line.partition("\t")
        if not size.startswith("0"):
            print(f"{size:>10}  {made_by[:100]}")


def expect_native_code(engine: list[str], image: str, options: list[str]) -> None:
    """Exit if the image's library in C++ is missing or does not load.

    Raises:
        CalledProcessError: the container failed.
    """
    code = "import os; from service.device.native.library import native_code; print(os.uname().machine, native_code())"
    command = [*engine, "run", "--rm", *options, "--entrypoint=python", image, "-c", code]
    machine, found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    print(f"native code on {machine}: {found}", flush=True)
    if found == "none":
        sys.exit("the image lacks the native code, or it does not load")


def smoke(container: Container) -> None:
    """Run the smoke test against the container.

    Raises:
        CalledProcessError: a check failed.
    """
    command = [sys.executable, "-m", "service", "smoke", f"http://127.0.0.1:{container.port}", "--model", MODEL]
    subprocess.run(command, check=True, cwd=ROOT)


def drain(container: Container) -> float:
    """Stop the container during a stream; return the seconds until it exits with 0."""
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
