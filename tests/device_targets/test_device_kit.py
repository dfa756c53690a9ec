"""The kit of the device check: with it and JAX alone, and without a network, the check passes.

The wheels come from a registry or from uv's cache; without either the test is skipped.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
KIT = ROOT / ".cache" / "device_kit"
UV = ROOT / ".tools" / "uv" / "bin" / "uv"
LARGEST_BYTES = 50 * 2**20
OF_JAX = ("jax", "jaxlib", "numpy", "scipy", "ml-dtypes", "opt-einsum")
# A network namespace of its own, in which there is nothing but the loopback device.
CUT_OFF = ["unshare", "--map-root-user", "--net", "sh", "-c", 'ip link set lo up && exec "$0" "$@"']
REACH_OUT = "import socket; socket.create_connection(('192.0.2.1', 80), timeout=5)"


def run(*command: str | Path, folder: Path = ROOT) -> subprocess.CompletedProcess:
    """Run a command without what the tests set for JAX and Python, a refusal of the network among that."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "PYTHON"))}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def kit() -> Path:
    made = run("make", "device-kit")
    if made.returncode != 0:
        pytest.skip(f"the kit cannot be gathered: {made.stderr[-300:]}")
    return KIT


@pytest.fixture(scope="module")
def python(kit, tmp_path_factory) -> Path:
    """Make an environment of the kit, and of what has JAX on such a machine."""
    folder = tmp_path_factory.mktemp("kit") / "environment"
    assert run(UV, "venv", "--quiet", "--python", sys.executable, folder).returncode == 0
    interpreter = folder / "bin" / "python"
    exported = run(UV, "export", "--quiet", "--frozen", "--no-default-groups", "--no-hashes", "--no-emit-project")
    of_jax = [line.split()[0] for line in exported.stdout.splitlines() if re.match(rf"({'|'.join(OF_JAX)})==", line)]
    assert len(of_jax) == len(OF_JAX)
    install = (UV, "pip", "install", "--quiet", "--no-deps", "--python", interpreter)
    installed = run(*install, *of_jax)
    if installed.returncode != 0:
        pytest.skip(f"JAX cannot be installed: {installed.stderr[-300:]}")
    of_kit = run(*install, "--no-index", "--find-links", kit, "--requirement", kit / "requirements.txt")
    assert of_kit.returncode == 0, of_kit.stderr
    return interpreter


@pytest.mark.slow
def test_the_kit_is_small(kit):
    assert sum(path.stat().st_size for path in kit.iterdir()) <= LARGEST_BYTES


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_check_passes_with_the_kit_alone_and_without_a_network(python, tmp_path):
    if run(*CUT_OFF, "true").returncode != 0:
        pytest.skip("this machine makes no network namespaces: unshare and ip are needed, and the right to use them")
    unreachable = run(*CUT_OFF, python, "-c", REACH_OUT)
    assert "Network is unreachable" in unreachable.stderr
    run("tar", "--extract", "--gzip", "--file", KIT / "levserve.tar.gz", folder=tmp_path)
    check = (python, "-m", "benchmarks.device_check", "--tiny", "--out", "check")
    checked = run(*CUT_OFF, *check, folder=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr[-3000:]
    assert "FAIL" not in checked.stdout
    assert "Not run" not in checked.stdout
