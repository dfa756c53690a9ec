"""The smoke test against the service itself, as a process."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.random_whisper import write_random_whisper
from tests.encoder import tiny
from tests.encoder.test_scores import write_reranker
from tests.process import running_service
from tests.sighted import save_qwen

pytestmark = pytest.mark.usefixtures("cold_start")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def service():
    with running_service(api_key="s3cret", model_name="demo") as running:
        yield running


def levserve_smoke(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "service", "smoke", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)


def test_it_is_green(service):
    ran = levserve_smoke(service.url, "--api-key", "s3cret", "--model", "demo")
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    assert "green: 8 passed" in ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vectors", "scores"])
def test_a_service_of_an_encoder_or_a_reranker_is_green(kind, tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    _ = tiny.write_checkpoint(folder) if kind == "vectors" else write_reranker(folder, "bert")
    settings = {"model_uri": folder, "local_model_cache": tmp_path / "cache", "max_prefill_tokens": "32"}
    with running_service(**settings) as service:
        ran = levserve_smoke(service.url)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    assert "green: 6 passed" in ran.stdout
    assert ("two vectors of 32 dimensions" if kind == "vectors" else "two documents ranked") in ran.stdout


@pytest.mark.slow
def test_a_service_that_hears_is_green(tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    write_random_whisper(folder)
    with running_service(model_uri=folder, local_model_cache=tmp_path / "cache", max_num_seqs=4) as service:
        ran = levserve_smoke(service.url)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    assert "green: 6 passed" in ran.stdout
    assert "the same as a stream" in ran.stdout


@pytest.mark.slow
def test_a_service_that_sees_is_green(tmp_path):
    save_qwen(tmp_path / "model")
    with running_service(model_uri=tmp_path / "model", local_model_cache=tmp_path / "cache", max_num_seqs=2) as service:
        ran = levserve_smoke(service.url)
    assert (ran.returncode, ran.stderr) == (0, ""), ran.stdout
    assert "green: 9 passed" in ran.stdout
    assert "of a red square" in ran.stdout


def test_a_wrong_key_and_a_wrong_model_are_red(service):
    ran = levserve_smoke(service.url, "--api-key", "wrong")
    assert ran.returncode == 1
    assert "it does not take this key" in ran.stdout
    ran = levserve_smoke(service.url, "--api-key", "s3cret", "--model", "other")
    assert ran.returncode == 1
    assert "serves demo, not other" in ran.stdout


@pytest.mark.slow
def test_pytest_tests_a_deployed_service_check_by_check(service):
    flags = [f"--url={service.url}", "--api-key=s3cret", "--patience=5"]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "tests/smoke"]
    ran = subprocess.run([*command, *flags], capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    assert re.search(r"^8 passed, \d+ skipped, \d+ deselected", ran.stdout, re.MULTILINE), ran.stdout
    collect = [*command, "--collect-only"]
    ran = subprocess.run(collect, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    assert re.search(r"\(\d+ deselected\)", ran.stdout), ran.stdout
    assert "test_deployed[" not in ran.stdout


def test_it_imports_nothing_of_the_server():
    code = (
        "import sys; from service.smoke import checks, command, identity; "
        "assert not {'jax', 'fastapi', 'pydantic', 'numpy'} & sys.modules.keys(), sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
