"""Tests see of the service what its own modules see: no private name."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = sorted((ROOT / "tests").rglob("*.py"))
IS_PRIVATE = re.compile(r"_[A-Za-z]\w*").fullmatch
PATCHED = re.compile(r"service\.[\w.]*\b(_[A-Za-z]\w*)").fullmatch  # the target of a `monkeypatch.setattr`
PUBLIC = {"_replace", "_asdict", "_fields", "_make"}  # of every NamedTuple
# (file, name): private names of other projects that the service happens to use for its own too.
OF_OTHERS = {
    ("tests/contract/test_openai_client.py", "_request_id"),  # documented by OpenAI
    ("tests/server/test_demo_service.py", "_request_id"),
    ("tests/deploy/test_terraform.py", "_name"),  # of a series of prometheus_client
}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def defined_in(path: Path) -> set[str]:
    """Return the private functions, classes, constants and attributes that a file defines."""
    names = set()
    for node in ast.walk(tree_of(path)):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
    return set(filter(IS_PRIVATE, names)) - PUBLIC


def reached_in(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the line and the name of each private name that a test takes from somewhere else."""
    for node in ast.walk(tree_of(path)):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if module.startswith("service"):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(attr=name):
                yield node.lineno, name
            case ast.Call(func=ast.Name(id="getattr" | "setattr") | ast.Attribute(attr="setattr")):
                words = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
                yield from ((node.lineno, found[1] if (found := PATCHED(word)) else word) for word in words)


def test_the_tests_reach_no_private_name_of_the_service():
    of_the_service = set().union(*(defined_in(path) for path in (ROOT / "service").rglob("*.py")))
    reached = []
    for path in TESTS:
        name_of_path = str(path.relative_to(ROOT))
        private = of_the_service - defined_in(path)
        reached += [
            f"{name_of_path}:{line}: {name}"
            for line, name in reached_in(path)
            if name in private and (name_of_path, name) not in OF_OTHERS
        ]
    assert reached == []
