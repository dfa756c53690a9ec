"""The rules of the house that a machine can check."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
BANNED_FILE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager", "core"}
BANNED_CLASS_ENDINGS = ("Manager", "Handler", "Helper", "Processor")

SOURCES = sorted((ROOT / "service").rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_is_small_and_says_what_it_is(path):
    text = path.read_text()
    tree = ast.parse(text)
    assert text.count("\n") <= MAX_FILE_LINES
    assert ast.get_docstring(tree)
    assert path.stem not in BANNED_FILE_NAMES
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno - node.lineno < MAX_FUNCTION_LINES, node.name
        if isinstance(node, ast.ClassDef):
            assert not node.name.endswith(BANNED_CLASS_ENDINGS), node.name


def test_a_todo_names_its_issue():
    pattern = re.compile(r"\b(TODO|FIXME|HACK|XXX)\b(?!\(#\d+\))")
    found = [str(path) for path in SOURCES if pattern.search(path.read_text())]
    assert found == []


def test_jax_is_not_imported_before_it_is_needed():
    """The port opens before jax, and the web side never needs it."""
    import subprocess
    import sys

    code = (
        "import service.server.app, sys\nassert not {'jax', 'haliax', 'transformers', 'levanter'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
