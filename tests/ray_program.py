"""Programs of the tests that use Ray, each in a process of its own, in the environment that has Ray.

Whatever a program leaves behind is ended with it, since a later `ray.init` would connect to a cluster that still runs.
"""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".tools" / "targets" / "ray" / "bin" / "python"
VARIABLES = {
    "RAY_ADDRESS": "local",  # not a cluster that runs here
    "RAY_AUTH_MODE": "disabled",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    # Else the workers of a program below `uv run` are started by `uv run` too, in a copy of this folder.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_raylet_start_wait_time_s": "120",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    # Few executables for each actor to compile.
    "MAX_MODEL_LEN": "256",
    "MAX_PREFILL_TOKENS": "64",
}
# What Ray says on a machine so busy that a node gives up before it runs.
NOT_STARTED = "The current node timed out during startup"
ATTEMPTS = 3


def run_ray_program(module, *arguments, timeout_s=300, **environment):
    """Run a module with a folder for Ray of its own, RAY_TMPDIR; return its last line, as parsed JSON.

    Skips the test if there is no Ray.
    """
    if not PYTHON.exists():
        pytest.skip("Ray is not installed: make .tools/targets/ray")
    command = [str(PYTHON), "-m", module, *arguments]
    for _ in range(ATTEMPTS):
        code, printed, log = _run(command, timeout_s, environment)
        if NOT_STARTED not in log:
            break
    assert code == 0, f"exit code {code}\n{log[-5000:]}"
    return json.loads(printed.splitlines()[-1])


def _run(command, timeout_s, environment):
    """Return the exit code of a program, what it printed, and its log."""
    folder = tempfile.mkdtemp(prefix="ray-")  # short, for the paths of sockets
    Path(folder, "ray").mkdir()
    known = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    # Without the folder that refuses other machines: the processes of a node speak through the machine's own address.
    known |= VARIABLES | {"RAY_TMPDIR": folder, "PYTHONPATH": str(ROOT)} | environment
    # Not to a pipe, whose other end the processes of a node may keep open.
    printed, log = Path(folder, "printed"), Path(folder, "log")
    try:
        with printed.open("wb") as out, log.open("wb") as err:
            process = subprocess.Popen(command, cwd=ROOT, env=known, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = f"none within {timeout_s} s"
        finally:
            _end(process.pid, folder)
            process.wait()
        return code, printed.read_text(), log.read_text()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _end(pid, folder):
    """Kill a program, what it has started, and what that has left: the processes that name the folder."""
    found = []
    with contextlib.suppress(psutil.NoSuchProcess):
        program = psutil.Process(pid)
        found = [*program.children(recursive=True), program]
    for process in psutil.process_iter(["cmdline"]):
        if any(folder in word for word in process.info["cmdline"] or ()):
            found.append(process)
    for process in found:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
