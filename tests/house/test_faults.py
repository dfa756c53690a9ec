"""The tests that the list of faults names exist."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_the_list_of_faults_names_exists():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "tests/checkpoint/README.md").read_text())
    assert len(named) > 30
    for path, name in named:
        functions = {node.name for node in ast.parse((ROOT / path).read_text()).body if hasattr(node, "name")}
        assert name in functions, f"{path} has no {name}"
