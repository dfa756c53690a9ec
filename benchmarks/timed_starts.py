"""Time from process start to first token: each contender is started, asked for one token, and stopped.

The clock starts before the process and stops when the first token arrives. All contenders get the same request.
"""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from benchmarks.contenders import ROOT, HttpServer, free_port, service_environment
from benchmarks.load import EVENT, completion_body
from benchmarks.peers.start import Site, start_contender

POLL_S = 0.005
START_TIMEOUT_S = 600
ADMIN_KEY = "benchmark"
READ_BYTES = 8 * 1024 * 1024
# Bytecode is compiled before anything is timed, as in `make serve` and the image; a child may add missing files.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def floor(checkpoint: Path) -> dict[str, Any]:
    """Time the minimum of any start on jax: import jax, find the device, read the bytes."""
    began_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import jax; jax.devices()"], cwd=ROOT, check=True)
    jax_s = time.perf_counter() - began_s
    buffer = bytearray(READ_BYTES)
    began_s = time.perf_counter()
    with (checkpoint / "model.safetensors").open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    read_s = time.perf_counter() - began_s
    return {"first_token_s": jax_s + read_s, "jax_s": jax_s, "read_s": read_s}


def levserve(
    uri: str,
    cache: Path,
    prompt: list[int],
    settings: Mapping[str, str],
    *,
    picture: Path | None = None,
    ask: Callable[[int, list[int]], None] | None = None,
) -> dict[str, Any]:
    """Time a start of Levserve, with the bundle in `cache` if there is one. The request is sent early and waits.

    Args:
        uri: the checkpoint.
        cache: LOCAL_MODEL_CACHE.
        prompt: token ids of the request.
        settings: of the service.
        picture: the file to draw the timeline into, if any.
        ask: sends the request to a port and returns once the answer begins; by default a completion.

    Returns:
        `live_s`, `first_token_s`, and /admin/stats after all executables are loaded.
    """
    port, log = free_port(), cache.with_suffix(".log")
    fixed = {"HOST": "127.0.0.1", "PORT": str(port), "EARLY_REQUESTS": "wait", "ADMIN_API_KEY": ADMIN_KEY}
    environment = os.environ | service_environment(Path(uri), cache, settings) | fixed
    environment |= {"MODEL_URI": uri, "LOCAL_MODEL_CACHE": str(cache)}
    command = [sys.executable, "-m", "service", "serve"]
    command += ["--profile-start", str(picture)] if picture is not None else []
    began_s = time.perf_counter()
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        _wait_for(f"http://127.0.0.1:{port}/health/live", process, log)
        live_s = time.perf_counter() - began_s
        (ask or _first_event)(port, prompt)
        first_token_s = time.perf_counter() - began_s
        stats = _stats_when_ready(port, process, log)
        ready_s = time.perf_counter() - began_s
        _wait_for_bundle(cache)
        if picture is not None:
            _wait_for_file(picture)
    finally:
        process.terminate()
        process.wait()
    return {"live_s": live_s, "first_token_s": first_token_s, "ready_s": ready_s, "stats": stats}


def peer(name: str, site: Site, prompt: list[int]) -> dict[str, Any]:
    """Time a peer.

    Raises:
        PeerAbsent: it cannot be measured here.
    """
    began_s = time.perf_counter()
    with closing(start_contender(name, site)) as contender:
        if isinstance(contender, HttpServer):
            contender.answer(prompt, 1)
        else:
            contender.run([prompt], 1)
        return {"first_token_s": time.perf_counter() - began_s}


def phase_seconds(stats: Mapping[str, Any], phase: str) -> float:
    """Return the seconds that a phase of a start took as a whole."""
    return sum(s["end_s"] - s["begin_s"] for s in stats["spans"] if s["phase"] == phase and s["is_whole"])


def first_vector(port: int, text: list[int]) -> None:
    """Ask for the vector of a text."""
    with _posted(port, "embeddings", {"model": "bench", "input": text}) as response:
        assert json.load(response)["data"]


def _posted(port: int, route: str, body: Mapping[str, Any]) -> Any:
    url, headers = f"http://127.0.0.1:{port}/v1/{route}", {"Content-Type": "application/json"}
    return urllib.request.urlopen(
        urllib.request.Request(url, json.dumps(body).encode(), headers), timeout=START_TIMEOUT_S
    )


def _first_event(port: int, prompt: list[int]) -> None:
    with _posted(port, "completions", completion_body("bench", prompt, 1)) as response:
        while line := response.readline():
            if line.startswith(EVENT):
                return
    raise RuntimeError("the answer has no token")


def _stats_when_ready(port: int, process: "subprocess.Popen[bytes]", log: Path) -> dict[str, Any]:
    _wait_for(f"http://127.0.0.1:{port}/health/ready", process, log)
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/admin/stats", headers=headers)
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.load(response)


def _wait_for(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    give_up_s = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < give_up_s and process.poll() is None:
        with suppress(OSError), urllib.request.urlopen(url, timeout=30):
            return
        time.sleep(POLL_S)
    reason = re.sub(r"\s+", " ", log.read_text())[-600:]
    raise RuntimeError(f"the service did not start: {reason}")


def _wait_for_bundle(cache: Path) -> None:
    """Wait until the start has saved its bundle, which takes seconds, so that the next start finds it.

    Raises:
        RuntimeError: there is no bundle after a minute.
    """
    give_up_s = time.monotonic() + 60
    while not any((cache / "bundles").glob("*/manifest.json")):
        if time.monotonic() > give_up_s:
            raise RuntimeError(f"no bundle was saved in {cache / 'bundles'}")
        time.sleep(0.1)


def _wait_for_file(path: Path) -> None:
    give_up_s = time.monotonic() + 60
    while not path.exists() and time.monotonic() < give_up_s:
        time.sleep(0.1)
    time.sleep(0.5)  # not complete yet
