"""The demo model, compiled once for the whole session: one service for tests that only talk, bundles for the others.

The fixtures lie in a folder that all workers of pytest-xdist share; the first that needs one makes it.
"""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.process import ServiceProcess, running_service

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "service" / "demo"
CACHE = Path(os.environ["LOCAL_MODEL_CACHE"])
SHARED = CACHE.parent
ADMIN = {"Authorization": "Bearer operator"}
# A service of few executables: one sequence, one context, two lengths of chunks.
SMALL = {"max_num_seqs": "1", "max_model_len": "256", "max_prefill_tokens": "64"}


@dataclass(frozen=True)
class Start:
    """One start of a service with the demo model, as seen from outside."""

    answers: list[str | None]  # to the questions of `demo_answers`
    stats: dict[str, Any]
    outcomes: dict[str, float]  # of its searches for a bundle


@dataclass(frozen=True)
class Prewarmed:
    """What `levserve prewarm` has left and logged."""

    cache: Path
    shared: Path
    lines: list[dict[str, Any]]


def demo_tensors() -> dict[str, np.ndarray]:
    """The demo model's weights, in the type that they are stored in."""
    tensors = load_file(DEMO / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype(ml_dtypes.bfloat16)}
    return tensors


def answers_of(service: ServiceProcess, demo_answers: list[dict[str, str]]) -> list[str | None]:
    client = service.client()
    asked = [[{"role": "user", "content": pair["question"]}] for pair in demo_answers]
    answers = (client.chat.completions.create(model="levserve-demo", messages=m, temperature=0) for m in asked)
    return [answer.choices[0].message.content for answer in answers]


def stats_of(service: ServiceProcess) -> dict[str, Any]:
    """The statistics of a service whose ADMIN_API_KEY is `operator`."""
    return httpx.get(f"{service.url}/admin/stats", headers=ADMIN).json()


def outcomes_of(service: ServiceProcess) -> dict[str, float]:
    lines = httpx.get(f"{service.url}/metrics").text.splitlines()
    found = [line for line in lines if line.startswith("levserve_bundle_load_total{")]
    return {line.partition('outcome="')[2].partition('"')[0]: float(line.rsplit(" ", 1)[1]) for line in found}


def prewarm(cache: Path, *arguments: str, **settings: str) -> tuple[int, list[dict[str, Any]]]:
    """Run `levserve prewarm`; return its exit code and the lines of its log."""
    command = [sys.executable, "-m", "service", "prewarm", *arguments, "--local-model-cache", str(cache)]
    command += ["--log-format", "json"]
    for name, value in settings.items():
        command += [f"--{name.replace('_', '-')}", value]
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=280, check=False
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def start_of(demo_answers: list[dict[str, str]], **settings: Any) -> Start:
    """Start a service, wait until its bundle is kept, and look at it."""
    with running_service(admin_api_key="operator", **settings) as service:
        if outcomes_of(service) != {"hit": 1}:
            service.wait_for("bundle stored", timeout_s=30)
        return Start(answers_of(service, demo_answers), stats_of(service), outcomes_of(service))


def _once(name: str, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what was made under a name in this session; the first caller of all workers makes it, or fails for all."""
    made, failure = SHARED / f"{name}.json", SHARED / f"{name}.failure"
    with (SHARED / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not failure.exists(), failure.read_text()
        if not made.exists():
            failure.write_text(f"{name} was not made; see the first test that failed")
            made.write_text(json.dumps(make()))
            failure.unlink()
        return json.loads(made.read_text())


@pytest.fixture(scope="session")
def demo_answers() -> list[dict[str, str]]:
    return json.loads((Path(__file__).parent / "demo_answers.json").read_text())


@pytest.fixture(scope="session")
def cold_start(demo_answers) -> Start:
    """The session's one cold start of the demo model; its bundle lies in the cache that all services share."""
    return Start(**_once("cold_start", lambda: asdict(start_of(demo_answers))))


@pytest.fixture(scope="session")
def one_sequence() -> Prewarmed:
    """The session's one prewarming of the demo model for a small service, in a cache and a shared folder of its own."""
    cache, shared = SHARED / "one_sequence" / "cache", SHARED / "one_sequence" / "shared"

    def make() -> dict[str, Any]:
        code, lines = prewarm(cache, bundle_uri=str(shared), **SMALL)
        assert code == 0, lines
        return {"lines": lines}

    return Prewarmed(cache, shared, **_once("one_sequence", make))


@pytest.fixture(scope="session")
def demo_service(cold_start):
    with running_service() as service:
        yield service
