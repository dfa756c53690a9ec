"""The check of a device, on the processor of this machine with tiny models."""

import json
import subprocess
import sys

import pytest

from benchmarks.device_check.__main__ import PARTS
from benchmarks.device_check.report import write_page


def test_the_page_has_a_table_of_each_part_and_names_those_that_have_not_run():
    rows = [{"check": "a|b", "passed": True, "ms": 1.5}, {"check": "c", "passed": False, "error": "x\ny"}]
    page = write_page({"kernels": {"rows": rows}, "starts": {}})
    assert "| a/b | pass | 1.5 |  |" in page
    assert "| c | FAIL |  | x y |" in page
    assert "Not run: starts." in page


def test_a_check_without_time_runs_no_part_and_fails(tmp_path):
    command = [sys.executable, "-m", "benchmarks.device_check", "--tiny", "--seconds", "0", "--out", str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 1
    assert f"Not run: {', '.join(PARTS)}." in process.stdout


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_check_passes_on_a_processor_and_repeats_only_what_failed(tmp_path):
    command = [sys.executable, "-m", "benchmarks.device_check", "--tiny", "--out", str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stdout + process.stderr[-2000:]
    assert "FAIL" not in process.stdout
    assert "Not run" not in process.stdout
    kernels, decode = tmp_path / "kernels.json", tmp_path / "decode.json"
    decode_of_first = decode.stat().st_mtime_ns
    kernels.write_text(json.dumps({"rows": [{"check": "kernels", "passed": False}]}))
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0
    assert decode.stat().st_mtime_ns == decode_of_first
    assert all(row["passed"] for row in json.loads(kernels.read_text())["rows"])
