"""The table of threats: complete, with tests that exist; and the two defences that are the absence of something."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from scripts.defences import DEFENCES, LOCK_FILE, marks, without

ROOT = Path(__file__).parents[2]
TABLE = re.findall(r"^\| (T\d+) \|(.*)$", (ROOT / "docs/security.md").read_text(), re.MULTILINE)
NUM_THREATS = 46
# Readers of code that a checkpoint may bring.
READERS = {"runpy", "get_class_from_dynamic_module", "trust_remote_code"}


def functions_of(path: str) -> set[str]:
    nodes = ast.parse((ROOT / path).read_text()).body
    return {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_threat_has_a_test_that_exists():
    assert [number for number, _ in TABLE] == [f"T{number}" for number in range(1, NUM_THREATS + 1)]
    for number, row in TABLE:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
        assert named, f"{number} names no test"
        assert [name for path, name in named if name not in functions_of(path)] == []


def test_every_defence_names_a_test_of_its_row():
    assert [defence.threat for defence in DEFENCES] == [number for number, _ in TABLE]
    for defence, (_, row) in zip(DEFENCES, TABLE, strict=True):
        assert f"`{defence.test}`" in row


def test_every_defence_is_marked_once_and_can_be_taken_out(monkeypatch):
    monkeypatch.chdir(ROOT)
    marked = marks()
    assert {threat: len(files) for threat, files in marked.items()} == {
        defence.threat: 1 for defence in DEFENCES if defence is not LOCK_FILE
    }
    for defence in DEFENCES:
        if defence is not LOCK_FILE:
            source = marked[defence.threat][0].read_text()
            assert ast.dump(ast.parse(without(source, defence))) != ast.dump(ast.parse(source)), defence.threat


def test_every_file_of_a_defence_exists():
    named = [path for _, row in TABLE for path in re.findall(r"\(`([\w/.]+)`\)", row)]
    assert len(named) > 12
    assert [path for path in named if not (ROOT / "service" / path).exists()] == []


def test_the_service_has_no_reader_of_code_beside_weights():
    for path in (ROOT / "service").rglob("*.py"):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        names |= {node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg is not None}
        names |= {alias.name for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names}
        assert not names & (READERS | {"eval", "exec"}), path
        texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        assert not texts & {"runpy", "get_class_from_dynamic_module"}, path
        calls = {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
        assert not calls & {"__import__", "compile"}, path


@pytest.mark.parametrize(
    ("file", "function"), [("api/http/keys.py", "verify"), ("api/generation/sealed.py", "_is_signed")]
)
def test_secrets_are_compared_in_constant_time(file, function):
    """No test can see it in time: how long a comparison takes would tell how much of a guess is right."""
    [found] = [
        node
        for node in ast.walk(ast.parse((ROOT / "service" / file).read_text()))
        if isinstance(node, ast.FunctionDef) and node.name == function
    ]
    called = {node.func.attr for node in ast.walk(found) if isinstance(node, ast.Call) and hasattr(node.func, "attr")}
    assert "compare_digest" in called
    secrets = {"digest", "secret", "known", "signature", "key"}
    for node in ast.walk(found):
        if isinstance(node, ast.Compare) and not isinstance(node.ops[0], ast.Is | ast.IsNot):
            sides = {side.id for side in (node.left, *node.comparators) if isinstance(side, ast.Name)}
            assert not sides & secrets


def test_every_package_of_the_lock_has_a_hash():
    packages = tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    fetched = [package for package in packages if "registry" in package["source"]]
    assert len(fetched) > 100
    for package in fetched:
        files = [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else ())]
        assert files, package["name"]
        assert all(file["hash"].startswith("sha256:") for file in files), package["name"]
