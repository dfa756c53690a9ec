"""Values that pass through many functions: how many, and under how many names, may fall and not grow."""

import ast
from pathlib import Path

import pytest

SERVICE = Path(__file__).parents[2] / "service"
MODULES = {".".join(path.relative_to(SERVICE.parent).with_suffix("").parts): path for path in SERVICE.rglob("*.py")}
TREES = {name.removesuffix(".__init__"): ast.parse(path.read_text()) for name, path in MODULES.items()}
type Function = ast.FunctionDef | ast.AsyncFunctionDef


def definitions() -> dict[tuple[str, str], Function]:
    """Return every function of a module by its name, and the methods of a class by theirs and the class's."""
    found: dict[tuple[str, str], Function] = {}
    for module, tree in TREES.items():
        for node in tree.body:
            for inner in node.body if isinstance(node, ast.ClassDef) else [node]:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                    of_class = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
                    found[module, of_class + inner.name] = inner
    return found


DEFINED = definitions()
METHODS: dict[str, list[tuple[str, str]]] = {}
for key in DEFINED:
    METHODS.setdefault(key[1].rpartition(".")[2], []).append(key)


def called(module: str, name: str, call: ast.Call) -> tuple[str, str] | None:
    """Return the function of the service that a call reaches, if its name says which."""
    match call.func:
        case ast.Name(id=target):
            nodes = [node for node in ast.walk(TREES[module]) if isinstance(node, ast.ImportFrom)]
            imports = {alias.asname or alias.name: (n.module, alias.name) for n in nodes for alias in n.names}
            key = imports.get(target, (module, target))
            return next((k for k in (key, (key[0], f"{key[1]}.__init__")) if k in DEFINED), None)
        case ast.Attribute(value=ast.Name(id="self"), attr=target):
            return key if (key := (module, f"{name.rpartition('.')[0]}.{target}")) in DEFINED else None
        case ast.Attribute(attr=target):
            return METHODS[target][0] if len(METHODS.get(target, ())) == 1 else None
    return None


def walk(module: str, name: str, parameter: str) -> set[tuple[str, str, str]]:
    """Return the functions that a value reaches as an argument, each with the parameter that it is there."""
    reached, left = set[tuple[str, str, str]](), [(module, name, parameter)]
    while left:
        step = left.pop()
        if step in reached:
            continue
        reached.add(step)
        module, name, parameter = step
        for call in (node for node in ast.walk(DEFINED[module, name]) if isinstance(node, ast.Call)):
            is_value = [isinstance(argument, ast.Name) and argument.id == parameter for argument in call.args]
            by_name = [k.arg for k in call.keywords if isinstance(k.value, ast.Name) and k.value.id == parameter]
            if (any(is_value) or by_name) and (key := called(module, name, call)):
                arguments = DEFINED[key].args
                names = [a.arg for a in arguments.posonlyargs + arguments.args if a.arg not in ("self", "cls")]
                given = [n for n, is_it in zip(names, is_value, strict=False) if is_it] + [n for n in by_name if n]
                left += [(*key, n) for n in given]
    return reached


@pytest.mark.parametrize(
    ("module", "name", "parameter", "num_functions"),
    [
        ("service.api.chat", "create_chat_completion", "body", 23),
        ("service.engine.runner", "Runner.dispatch", "plan", 2),
        ("service.api.audio", "_answer", "body", 7),
        ("service.start.kinds.engine_spec", "choose_engine_spec", "settings", 7),
        ("service.start.tasks", "load_weights", "spec", 3),
    ],
)
def test_a_value_passes_no_more_functions_than_it_did(module: str, name: str, parameter: str, num_functions: int):
    reached = walk(module, name, parameter)
    assert len(reached) <= num_functions, sorted(reached)
