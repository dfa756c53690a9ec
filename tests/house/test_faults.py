"""The list of faults names tests that exist, and leaves none of the faults out."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in (ROOT / "tests/checkpoint/README.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| fault ")
]


@pytest.mark.parametrize(("fault", "outcome", "tests"), ROWS, ids=[row[0] for row in ROWS])
def test_every_fault_is_proven_by_tests_that_exist(fault: str, outcome: str, tests: str):
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", tests)
    assert named, fault
    assert outcome
    for path, name in named:
        functions = {node.name for node in ast.parse((ROOT / path).read_text()).body if hasattr(node, "name")}
        assert name in functions, f"{path} has no {name}"


FAULTS = (
    "503 429 500 reset cut stall drip flipped hash overwritten gzip credentials bucket full read-only two eight kill "
    "../ absolute NUL case canary jax 10,000"
)


@pytest.mark.parametrize("word", FAULTS.split())
def test_no_fault_of_the_promise_is_left_out(word: str):
    assert any(word in row[0] for row in ROWS)
