"""A bundle is made and found, two warm starts compile nothing, and the service passes its smoke test."""

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from benchmarks.contenders import free_port
from benchmarks.device_check import tunings
from benchmarks.device_check.model import FOLDER
from benchmarks.device_check.report import Row, write_part

READY_TIMEOUT_S = 240
NUM_STARTS = 2
MOST_S_BESIDE_READING = 5  # of a warm start, from the process to the first token


def main(out: Path, *, is_tiny: bool) -> None:
    """Prewarm, keep the tunings, look for the bundle, and start twice."""
    environment = os.environ | {"MODEL_URI": str(out / FOLDER)} | settings_of(out, is_tiny=is_tiny)
    written = out / "written.textproto"
    rows = [
        time_module("prewarm", ["benchmarks.device_check.tunings", str(written)], environment),
        *tunings.keep(written, out),
        time_command("check", ["prewarm", "--check"], environment),
    ]
    bound_s = None if is_tiny else _read_s(out / FOLDER) + MOST_S_BESIDE_READING
    rows += [start_once(f"start {number}", environment, bound_s) for number in range(1, NUM_STARTS + 1)]
    write_part(out, "starts", rows)


def settings_of(out: Path, *, is_tiny: bool) -> dict[str, str]:
    """Return the settings of the service, with which its bundle is found again."""
    settings = {"LOCAL_MODEL_CACHE": str(out / "cache")}
    if is_tiny:
        return settings | {"MAX_NUM_SEQS": "4", "MAX_MODEL_LEN": "512", "MAX_PREFILL_TOKENS": "64"}
    # Each context of steps is compiled, so that a longer one would outlast the part.
    return settings | {
        "DTYPE": "bfloat16",
        "MAX_NUM_SEQS": "64",
        "MAX_CONCURRENT_REQUESTS": "64",
        "MAX_MODEL_LEN": "2048",
    }


def _read_s(folder: Path) -> float:
    """Return the seconds in which the weights can be read from the disk, or from memory if they are there."""
    began_s = time.perf_counter()
    buffer = bytearray(2**26)
    for path in folder.glob("*.safetensors"):
        with path.open("rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
    return time.perf_counter() - began_s


def time_command(check: str, arguments: list[str], environment: dict[str, str]) -> Row:
    """Run a command of the service, which passes if it ends well."""
    return time_module(check, ["service", *arguments], environment)


def time_module(check: str, command: list[str], environment: dict[str, str]) -> Row:
    """Run a module with arguments, which passes if it ends well."""
    began_s = time.perf_counter()
    process = subprocess.run([sys.executable, "-m", *command], env=environment, stdout=subprocess.DEVNULL, check=False)
    return {"check": check, "passed": process.returncode == 0, "seconds": round(time.perf_counter() - began_s, 2)}


def start_once(check: str, environment: dict[str, str], bound_s: float | None) -> Row:
    """Start the service, run the smoke test against it, and stop it; a bound is of the seconds to the first token."""
    began_s = time.perf_counter()
    with running_service(Path(environment["LOCAL_MODEL_CACHE"]).parent / f"{check}.log", environment) as service:
        seconds = round(time.perf_counter() - began_s, 2)
        smoke = subprocess.run(
            [sys.executable, "-m", "service", "smoke", "--json", service.url], capture_output=True, check=False
        )
        compiled = _metric(service.url, "levserve_xla_compiles_total") if service.is_ready else None
    is_quick = bound_s is None or seconds <= bound_s
    passed = service.is_ready and smoke.returncode == 0 and compiled == 0 and is_quick
    failed = [] if smoke.returncode == 0 else [smoke.stdout.decode()[-300:]]
    return {
        "check": check,
        "passed": passed,
        "seconds": seconds,
        "bound, s": "" if bound_s is None else round(bound_s, 2),
        "compiles": compiled,
        "smoke": json.dumps(failed),
    }


class RunningService(NamedTuple):
    """A service, and whether it became ready."""

    url: str
    is_ready: bool


@contextlib.contextmanager
def running_service(log: Path, environment: Mapping[str, str]) -> Iterator[RunningService]:
    """Start the service, wait until it is ready or has ended, and stop it at the end; its log is kept."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "service", "serve", "--host", "127.0.0.1", "--port", str(port)]
    with log.open("w") as file, subprocess.Popen(command, env=environment, stdout=file, stderr=file) as server:
        try:
            yield RunningService(url, _wait(server, url + "/health/ready"))
        finally:
            server.terminate()


def _wait(server: subprocess.Popen, url: str) -> bool:
    end_s = time.perf_counter() + READY_TIMEOUT_S
    while time.perf_counter() < end_s and server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    return False


def _metric(url: str, name: str) -> float | None:
    with urllib.request.urlopen(url + "/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return next((float(line.split()[-1]) for line in lines if line.startswith(name)), None)


if __name__ == "__main__":
    main(Path(sys.argv[1]), is_tiny="--tiny" in sys.argv)
