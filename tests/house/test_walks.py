"""Values that pass through many functions: how many, and under how many names, may fall and not grow."""

import ast
from pathlib import Path

import pytest

SERVICE = Path(__file__).parents[2] / "service"
type Function = ast.FunctionDef | ast.AsyncFunctionDef
type Key = tuple[str, str]  # a module, and a function or a class and its method


class Code:
    """The syntax trees of the service, and its functions by their names."""

    def __init__(self) -> None:
        paths = {
            ".".join(path.relative_to(SERVICE.parent).with_suffix("").parts): path for path in SERVICE.rglob("*.py")
        }
        trees = {name.removesuffix(".__init__"): ast.parse(path.read_text()) for name, path in paths.items()}
        self.defined: dict[Key, Function] = {}
        self.imports: dict[str, dict[str, tuple[str | None, str]]] = {}
        self.methods: dict[str, list[Key]] = {}
        for module, tree in trees.items():
            nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
            self.imports[module] = {
                alias.asname or alias.name: (n.module, alias.name) for n in nodes for alias in n.names
            }
            for node in tree.body:
                for inner in node.body if isinstance(node, ast.ClassDef) else [node]:
                    if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                        of_class = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
                        self.defined[module, of_class + inner.name] = inner
        for key in self.defined:
            self.methods.setdefault(key[1].rpartition(".")[2], []).append(key)

    def called(self, module: str, name: str, call: ast.Call) -> Key | None:
        """Return the function of the service that a call reaches, if its name says which."""
        match call.func:
            case ast.Name(id=target):
                key = self.imports[module].get(target, (module, target))
                return next((k for k in (key, (key[0], f"{key[1]}.__init__")) if k in self.defined), None)
            case ast.Attribute(value=ast.Name(id="self"), attr=target):
                return key if (key := (module, f"{name.rpartition('.')[0]}.{target}")) in self.defined else None
            case ast.Attribute(attr=target):
                return self.methods[target][0] if len(self.methods.get(target, ())) == 1 else None
        return None

    def walk(self, module: str, name: str, parameter: str) -> set[tuple[str, str, str]]:
        """Return the functions that a value reaches as an argument, each with the parameter that it is there."""
        reached, left = set[tuple[str, str, str]](), [(module, name, parameter)]
        while left:
            step = left.pop()
            if step in reached:
                continue
            reached.add(step)
            module, name, parameter = step
            for call in (node for node in ast.walk(self.defined[module, name]) if isinstance(node, ast.Call)):
                is_value = [isinstance(argument, ast.Name) and argument.id == parameter for argument in call.args]
                by_name = [k.arg for k in call.keywords if isinstance(k.value, ast.Name) and k.value.id == parameter]
                if (any(is_value) or by_name) and (key := self.called(module, name, call)):
                    arguments = self.defined[key].args
                    names = [a.arg for a in arguments.posonlyargs + arguments.args if a.arg not in ("self", "cls")]
                    given = [n for n, is_it in zip(names, is_value, strict=False) if is_it] + [n for n in by_name if n]
                    left += [(*key, n) for n in given]
        return reached


@pytest.fixture(scope="module")
def code() -> Code:
    return Code()


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
def test_a_value_passes_no_more_functions_than_it_did(
    code: Code, module: str, name: str, parameter: str, num_functions: int
):
    reached = code.walk(module, name, parameter)
    assert len(reached) <= num_functions, sorted(reached)
