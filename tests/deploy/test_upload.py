"""What Cloud Build gets: the files that gcloud uploads, without a repository, and its first step on them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(shutil.which("gcloud") is None, reason="gcloud is not installed"),
]


@pytest.fixture(scope="module")
def upload(tmp_path_factory):
    """A folder with what `gcloud builds submit` would upload."""
    command = ["gcloud", "meta", "list-files-for-upload", str(ROOT)]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    folder = tmp_path_factory.mktemp("upload")
    for name in listed.stdout.splitlines():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)
    return folder


def test_an_upload_has_no_repository_and_nothing_that_was_built(upload):
    names = {path.name for path in upload.iterdir()}
    assert {"Makefile", "service", "tests", "uv.lock"} <= names
    assert {".git", ".venv", ".tools", ".cache"} & names == set()


def test_the_first_step_passes_on_an_upload(upload):
    """The tests of the house and of the documents, which look at the files themselves; the others do not."""
    [check] = [
        step for step in yaml.safe_load((ROOT / "cloudbuild.yaml").read_text())["steps"] if step["id"] == "check"
    ]
    assert check["script"].rstrip().endswith("make check test")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/house",
        "tests/deploy/test_documents.py",
    ]
    variables = {"PATH": "/usr/bin:/bin", "HOME": "/dev/null/home"}
    done = subprocess.run(command, cwd=upload, env=variables, capture_output=True, text=True, check=False, timeout=1000)
    assert done.returncode == 0, done.stdout[-3000:]
    documents = [sys.executable, "-m", "scripts.write_documents", "--check"]
    done = subprocess.run(documents, cwd=upload, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
