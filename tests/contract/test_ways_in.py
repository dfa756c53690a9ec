"""The ways to Levserve that docs/install.md names, each from files alone to a first token; and a Levanter run.

They install a gigabyte each, from the registry of packages or uv's cache.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.contract.installation import UNREACHABLE, UV

ROOT = Path(__file__).parents[2]
INSTALLED_WITHIN_S = 1200
ANSWER_WITHIN_S = 300
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(INSTALLED_WITHIN_S + ANSWER_WITHIN_S),
    pytest.mark.xdist_group("ways"),
]
# What a shell of a developer has, and a new user's has not.
OURS = ("VIRTUAL_ENV", "PYTHONPATH", "UV_PROJECT_ENVIRONMENT", "MAKEFLAGS", "MAKELEVEL", "MFLAGS")


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A copy of what git would have: no environment, no cache, no native library."""
    folder = tmp_path_factory.mktemp("ways") / "levserve"
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode:
        pytest.skip("there is no repository here")
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def surroundings(home: Path, port: int) -> dict[str, str]:
    """The environment of a new user: without this one's packages and settings."""
    kept = {name: value for name, value in os.environ.items() if name not in OURS and not name.startswith("PYTEST")}
    own = {
        "LEVSERVE_HOST": "127.0.0.1",
        "LEVSERVE_PORT": str(port),
        "LOCAL_MODEL_CACHE": str(home),
        "MAX_NUM_SEQS": "1",
    }
    return kept | own


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def first_token(command: list[str], folder: Path, home: Path, prompt: str) -> str:
    """Start a command, wait until it serves, and return the text of one completion."""
    port = free_port()
    log = home / "log"
    with log.open("w") as out:
        process = subprocess.Popen(
            command, cwd=folder, env=surroundings(home, port), stdout=out, stderr=out, start_new_session=True
        )
        try:
            end_s = time.monotonic() + INSTALLED_WITHIN_S
            while not ready(port):
                if process.poll() is not None and UNREACHABLE.search(log.read_text()):
                    pytest.skip("the registry of packages cannot be reached")
                assert process.poll() is None, log.read_text()[-3000:]
                assert time.monotonic() < end_s, log.read_text()[-3000:]
                time.sleep(1)
            url = f"http://127.0.0.1:{port}/v1"
            [model] = httpx.get(f"{url}/models", timeout=60).json()["data"]
            body = {"model": model["id"], "prompt": prompt, "max_tokens": 8, "temperature": 0}
            return httpx.post(f"{url}/completions", json=body, timeout=ANSWER_WITHIN_S).json()["choices"][0]["text"]
        finally:
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                os.killpg(process.pid, signal.SIGTERM)
            process.wait(60)


def ready(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health/ready", timeout=10).status_code == 200
    except httpx.TransportError:
        return False


def test_a_clone(clone, tmp_path):
    assert first_token(["make", "serve"], clone, tmp_path, "Once")
    installed = sum(path.lstat().st_size for path in clone.rglob("*") if path.is_file() and not path.is_symlink())
    assert round(installed / 1e9) == 1  # as README.md and docs/install.md say


def test_a_levanter_run_in_one_command(clone, tmp_path):
    command = ["make", "serve", "RUN=examples/levanter_run/run"]
    assert first_token(command, clone, tmp_path, "Twinkle, twinkle,").startswith(" little star")


def test_uvx_from_a_clone(clone, tmp_path):
    if not UV.exists():
        pytest.skip("uv is not installed; `make test` installs it")
    command = [str(UV), "tool", "run", "--python", "3.12", "--from", str(clone), "levserve", "serve"]
    assert first_token(command, tmp_path, tmp_path, "Once")


def test_a_wheel(clone, tmp_path):
    subprocess.run([str(UV), "build", "--wheel", "--out-dir", str(tmp_path / "dist"), str(clone)], check=True)
    [wheel] = (tmp_path / "dist").glob("levserve-*.whl")
    subprocess.run([str(UV), "venv", "--python", sys.executable, str(tmp_path / "venv")], check=True)
    python = str(tmp_path / "venv/bin/python")
    subprocess.run(
        [str(UV), "pip", "install", "--python", python, "--prerelease", "if-necessary", str(wheel)], check=True
    )
    assert first_token([str(tmp_path / "venv/bin/levserve"), "serve"], tmp_path, tmp_path, "Once")


def test_the_image(clone):
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "info"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no engine of docker runs here")
    subprocess.run(["make", "image"], cwd=clone, check=True)
    done = subprocess.run([sys.executable, "scripts/check_image.py", "levserve"], cwd=ROOT, check=False)
    assert done.returncode == 0


def test_what_is_committed_as_a_run_is_small_and_has_what_the_readme_says():
    run = ROOT / "examples/levanter_run/run"
    assert sum(path.stat().st_size for path in run.rglob("*") if path.is_file()) < 200_000
    assert json.loads((run / "step-400/metadata.json").read_text())
