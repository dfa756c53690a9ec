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

# Of fields that mean the same in all bodies that have them.
COMMON = {
    "description": "What it is for.",
    "messages": "The chat so far, oldest message first.",
    "model": "The served model's name; GET /v1/models lists it.",
    "role": "Who speaks: `system`, of which `developer` is a newer name, `user`, `assistant`, `tool`, or a role that "
    "the\nmodel's chat template writes.",
    "stream": "Whether to answer with server-sent events.",
    "temperature": "Divides the logits; 0 always takes the likeliest token.",
    "tools": "The functions that the model may call. Calls are held to their schemas; what a grammar cannot hold is "
    "refused if\nthe call is required or strict, and is otherwise left out and named.",
    "top_logprobs": "How many alternatives to return for each token; needs `logprobs`.",
    "top_p": "Keep the likeliest tokens whose probabilities add up to this; 0 keeps only the likeliest.",
    "type": "The kind of the object.",
    "user": "The client's own user, written to the log.",
}


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
