"""A disk that is full at any write: what was not refused is whole, and once there is room all goes on."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.stored import FILES

SOURCE = Path(__file__).with_name("full_disk.c")
MIN_WRITES = {"pull": 20, "bundle": 20, "response": 10, "batch": 40, "upload": 20}  # or the library sees none


@pytest.fixture(scope="session")
def library(tmp_path_factory) -> Path:
    """The library that makes a disk full."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("there is no compiler")
    library = tmp_path_factory.mktemp("full_disk") / "full_disk.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl"], check=True)
    return library


@pytest.mark.parametrize(
    "scenario",
    ["pull", "bundle", *(pytest.param(name, marks=pytest.mark.slow) for name in ("response", "batch", "upload"))],
)
def test_what_a_full_disk_does_not_refuse_is_whole(scenario, library, gcs_bucket, tmp_path):
    for name, data in FILES.items():
        gcs_bucket.upload(f"model/{name}", data)
    arguments = [gcs_bucket.endpoint, gcs_bucket.name] if scenario == "pull" else []
    done = subprocess.run(
        [sys.executable, "-m", "tests.storage.full_disk_process", scenario, tmp_path, *arguments],
        env=os.environ | {"LD_PRELOAD": str(library), "FULL_DISK_FOLDER": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["writes"] > MIN_WRITES[scenario]
