"""The strings below a model's fields, which describe them to clients.

Pydantic's `use_attribute_docstrings` reads them while a class is created. For the models that a start imports that
takes 75 ms, a quarter of the import of the API, so here they are read when a schema is made.
"""

import ast
import inspect
from functools import cache
from itertools import pairwise
from textwrap import dedent
from types import get_original_bases


@cache
def field_docstrings(kind: type) -> dict[str, str]:
    """Return the strings by field, those of base classes included."""
    if kind.__module__ in ("builtins", "typing", "pydantic.main"):
        return {}
    bases = [base for base in reversed(get_original_bases(kind)) if isinstance(base, type)]
    found = {name: text for base in bases for name, text in field_docstrings(base).items()}
    [node] = ast.parse(dedent(inspect.getsource(kind))).body
    assert isinstance(node, ast.ClassDef)
    for field, text in pairwise(node.body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(value))):
                found[name] = inspect.cleandoc(value)
            case _:
                pass
    return found
