"""A library that is missing or does not fit leaves everything to XLA, with a line that says why."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from service.device.native.library import LIBRARY, NativeCode, native_code

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="no native code was compiled")

LOAD = """
import json, logging, sys
from pathlib import Path
from service.device.native import library
records = []
logging.getLogger(library.__name__).addHandler(type("", (logging.Handler,), {"emit": lambda _, r: records.append(r)})())
found = {}
for folder in Path(sys.argv[1]).iterdir():
    library.native_code.cache_clear()
    records.clear()
    library.LIBRARY = folder / library.LIBRARY.name
    found[folder.name] = (library.native_code(), records[0].reason if records else None)
import jax, numpy as np
from service.device.lazy_zeros import lazy_zeros
library.native_code.cache_clear()
library.LIBRARY = Path("/nowhere")
zeros = np.asarray(lazy_zeros((3, 5), "float32"))
json.dump([found, zeros.shape == (3, 5) and not zeros.any()], sys.stdout)
"""


def truncate(library: Path, num_bytes: int) -> None:
    library.write_bytes(library.read_bytes()[:num_bytes])


def make_foreign(library: Path) -> None:
    data = bytearray(library.read_bytes())
    data[18] = 0x08  # e_machine: MIPS
    library.write_bytes(data)


def make_stale(library: Path) -> None:
    with library.with_name("linear.cc").open("a") as source:
        source.write("// changed\n")


def make_unreadable(library: Path) -> None:
    library.unlink()
    library.mkdir()


DAMAGES = {
    "half": lambda library: truncate(library, library.stat().st_size // 2),
    "all but the last byte": lambda library: truncate(library, library.stat().st_size - 1),
    "empty": lambda library: truncate(library, 0),
    "of another machine": make_foreign,
    "of other sources": make_stale,
    "unreadable": make_unreadable,
    "another file": lambda library: library.write_bytes(b"\x7fELF" + bytes(1000)),
}


def test_a_library_that_does_not_fit_is_left_alone_and_the_log_says_why(tmp_path: Path):
    for name, damage in DAMAGES.items():
        shutil.copytree(LIBRARY.parent, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        damage(tmp_path / name / LIBRARY.name)
    done = subprocess.run([sys.executable, "-c", LOAD, tmp_path], capture_output=True, text=True, check=True)
    found, zeros_are_right = json.loads(done.stdout)
    assert {name: code for name, (code, _) in found.items()} == dict.fromkeys(DAMAGES, NativeCode.NONE)
    reasons = {name: reason for name, (_, reason) in found.items()}
    assert reasons["half"] == reasons["all but the last byte"] == reasons["empty"] == "it is truncated"
    assert reasons["of other sources"] == "it was compiled from other sources"
    assert all(reasons.values())
    assert zeros_are_right


def test_the_library_needs_the_c_library_alone_and_shows_its_calls_alone():
    assert native_code() is not NativeCode.NONE
    shown = subprocess.run(["nm", "--dynamic", LIBRARY], capture_output=True, text=True, check=True).stdout
    defined = {line.split()[2] for line in shown.splitlines() if " T " in line}
    assert defined
    assert all(name.startswith("levserve_") for name in defined)
    undefined = [line.split()[1] for line in shown.splitlines() if " U " in line]
    versions = {tuple(map(int, name.partition("@GLIBC_")[2].split("."))) for name in undefined}
    assert max(versions) <= (2, 17)


PRELOADED = ("libjemalloc.so.2", "libtcmalloc_minimal.so.4")
NATIVE_TESTS = ("tests/kernels/test_native.py", "tests/device/test_lazy_zeros.py")


def pass_native_tests(*command: str, **variables: str) -> None:
    """Run the tests of products and zeros in a process of their own."""
    pytest_command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *NATIVE_TESTS]
    environment = {**os.environ, **variables, "PYTEST_ADDOPTS": "", "PYTEST_XDIST_WORKER": ""}
    done = subprocess.run([*command, *pytest_command], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("allocator", PRELOADED)
def test_a_preloaded_allocator_changes_nothing(allocator: str):
    path = next(Path("/usr/lib").rglob(allocator), None)
    if path is None:
        pytest.skip(f"{allocator} is not installed")
    pass_native_tests(LD_PRELOAD=str(path))


@pytest.mark.slow
def test_one_core_is_enough():
    pass_native_tests("taskset", "--cpu-list", str(min(os.sched_getaffinity(0))))
