"""The rules of the house that a machine can check."""

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
MAX_FUNCTION_LINES = 80
MAX_LAYERS = 12
BANNED_FILE_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager", "core"}
BANNED_CLASS_ENDINGS = ("Manager", "Handler", "Helper", "Processor")

# Folders of tests that mirror no folder of the service.
KINDS = {("contract",), ("deploy",), ("device_targets",), ("house",), ("parity",), ("soak",)}

SOURCES = sorted((ROOT / "service").rglob("*.py"))


def test_files_say_what_they_are_and_functions_fit_on_a_screen():
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        assert ast.get_docstring(tree), path
        assert path.stem not in BANNED_FILE_NAMES, path
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno - node.lineno < MAX_FUNCTION_LINES, (path, node.name)
            if isinstance(node, ast.ClassDef):
                assert not node.name.endswith(BANNED_CLASS_ENDINGS), (path, node.name)


def test_the_root_of_the_service_holds_the_entry_settings_and_errors_alone():
    entries = {path.name for path in (ROOT / "service").iterdir() if path.is_file()}
    assert entries == {"__init__.py", "__main__.py", "cli.py"}


def test_the_layers_of_imports_are_few_and_hold_every_module():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [layers] = [contract["layers"] for contract in contracts if contract.get("containers") == ["service"]]
    named = [name.strip() for layer in layers for name in layer.split("|")]
    assert len(layers) <= MAX_LAYERS
    packages = {path.parent.name for path in (ROOT / "service").glob("*/__init__.py")}
    modules = {path.stem for path in (ROOT / "service").glob("*.py")} - {"__init__"}
    assert sorted(named) == sorted(packages | modules)


def test_tests_lie_in_the_folder_of_what_they_test():
    """The tree of tests is that of the service; besides it there are kinds of tests that concern all of it."""
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    kinds = {folder for folder in folders if folder.parts[:1] in KINDS}
    assert [str(folder) for folder in folders - kinds if not (ROOT / "service" / folder).is_dir()] == []


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
