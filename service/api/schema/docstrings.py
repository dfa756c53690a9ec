"""The strings below a model's fields, which describe them to clients.

Pydantic's `use_attribute_docstrings` reads them while a class is created. For the models that a start imports that
takes 75 ms, a quarter of the import of the API, so here they are read when a schema is made.
"""

import ast
import inspect
from functools import cache
from itertools import pairwise
from textwrap import dedent


@cache
def field_docstrings(kind: type) -> dict[str, str]:
    """Return the strings by field, those of base classes included."""
    found = {name: text for base in reversed(kind.__bases__) for name, text in field_docstrings(base).items()}
    if kind.__module__ in ("builtins", "pydantic.main"):
        return found
    [node] = ast.parse(dedent(inspect.getsource(kind))).body
    assert isinstance(node, ast.ClassDef)
    for field, text in pairwise(node.body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(value))):
                found[name] = inspect.cleandoc(value)
            case _:
                pass
    return found
