"""What each setting means: the text below its field in settings.py, read when somebody asks for help and not before."""

import ast
import inspect
from itertools import pairwise
from pathlib import Path

from service import settings


def setting_meanings() -> dict[str, str]:
    """Return the meaning of every setting as one line, by field name, in the order of settings.py."""
    module = ast.parse(Path(settings.__file__).read_text(encoding="utf-8"))
    [fields] = [node for node in module.body if isinstance(node, ast.ClassDef) and node.name == "Settings"]
    return {
        field.target.id: " ".join(inspect.cleandoc(text.value.value).split())
        for field, text in pairwise(fields.body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
