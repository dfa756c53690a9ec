"""The mutants of a source file: mutmut's operators, and five more for what decides a policy.

Left alone, by rule and never one by one: type annotations (but for what `Annotated` adds to a type), imports,
decorators, docstrings, loggers and their calls, `__repr__`, bodies of protocols, and prose. Prose is a text with a
blank between two words: the wording of an error is free, its class and its fields are not.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import libcst as cst
import libcst.matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider, WhitespaceInclusivePositionProvider
from mutmut.mutation.mutators import mutation_operators, operator_string

PROSE = re.compile(r"\w\S* \S*\w")
LOGGER_CALL = m.Call(func=m.Attribute(value=m.Name("logger")))
LEFT_ALONE = m.OneOf(
    m.Decorator(),
    m.Import(),
    m.ImportFrom(),
    LOGGER_CALL,
    m.Assign(targets=[m.AssignTarget(target=m.Name("logger"))]),
    m.Expr(value=LOGGER_CALL | m.SimpleString() | m.ConcatenatedString()),
    m.FunctionDef(name=m.Name("__repr__")),
    m.ClassDef(bases=[m.ZeroOrMore(), m.Arg(value=m.Name("Protocol")), m.ZeroOrMore()]),
    m.If(test=m.Name("TYPE_CHECKING")),
    m.Call(func=m.Name("len") | m.Name("isinstance") | m.Name("TypeVar")),  # another argument fails at once
)


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    path: str  # of the file, from the root of the repository
    scope: str  # the classes and functions around the change, joined by dots; empty at module level
    line: int
    function_lines: range | None  # of the body of the outermost function around the change
    was: str  # the changed lines before the change, on one line
    becomes: str
    source: str  # of the whole file

    @property
    def key(self) -> str:
        """Return a name that survives changes elsewhere in the file."""
        return sha256(repr((self.path, self.scope, self.was, self.becomes)).encode()).hexdigest()[:12]

    def __str__(self) -> str:
        """Return the place and the change, as a person reads them."""
        return f"{self.path}:{self.line} {self.scope} [{self.key}]\n    - {self.was}\n    + {self.becomes}"


def mutants_of(path: str) -> list[Mutant]:
    """Return every mutant of a file, in the order of lines."""
    wrapper = MetadataWrapper(cst.parse_module(Path(path).read_text()))
    visitor = _Visitor(path, wrapper.module)
    wrapper.visit(visitor)
    return sorted(filter(_compiles, visitor.mutants.values()), key=lambda mutant: mutant.line)


def _compiles(mutant: Mutant) -> bool:
    try:
        compile(mutant.source, mutant.path, "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


class _Visitor(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider, WhitespaceInclusivePositionProvider)

    def __init__(self, path: str, module: cst.Module) -> None:
        self.mutants: dict[str, Mutant] = {}
        self._path = path
        self._module = module
        self._lines = module.code.splitlines(keepends=True)
        self._scopes: list[cst.FunctionDef | cst.ClassDef] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Annotation):
            for annotated in m.findall(node, m.Subscript(value=m.Name("Annotated"))):
                for addition in cst.ensure_type(annotated, cst.Subscript).slice[1:]:
                    addition.visit(self)
            return False
        if m.matches(node, LEFT_ALONE) or _is_prose(node):
            return False
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            self._scopes.append(node)
        for kind, operator in OPERATORS:
            if isinstance(node, kind):
                for part, changed in operator(node):
                    if not _changes_nothing(part, changed):
                        self._add(part, changed)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if self._scopes and self._scopes[-1] is original_node:
            self._scopes.pop()

    def _add(self, node: cst.CSTNode, changed: cst.CSTNode) -> None:
        span = self.get_metadata(WhitespaceInclusivePositionProvider, node)
        first, last = span.start.line - 1, span.end.line - 1
        head, tail = self._lines[first][: span.start.column], self._lines[last][span.end.column :]
        before = self._lines[first : last + 1]
        after = (head + self._module.code_for_node(changed) + tail).splitlines(keepends=True)
        source = "".join((*self._lines[:first], *after, *self._lines[last + 1 :]))
        functions = [scope for scope in self._scopes if isinstance(scope, cst.FunctionDef)]
        mutant = Mutant(
            path=self._path,
            scope=".".join(scope.name.value for scope in self._scopes),
            line=self.get_metadata(PositionProvider, node).start.line,
            function_lines=self._lines_of(functions[0].body) if functions else None,
            **_difference(before, after),
            source=source,
        )
        self.mutants.setdefault(mutant.key, mutant)

    def _lines_of(self, node: cst.CSTNode) -> range:
        span = self.get_metadata(PositionProvider, node)
        return range(span.start.line, span.end.line + 1)


def _is_prose(node: cst.CSTNode) -> bool:
    match node:
        case cst.SimpleString():
            return PROSE.search(node.value) is not None
        case cst.FormattedString():
            parts = (part.value if isinstance(part, cst.FormattedStringText) else "x" for part in node.parts)
            return PROSE.search("".join(parts)) is not None
        case cst.ConcatenatedString():
            return _is_prose(node.left) or _is_prose(node.right)
    return False


def _changes_nothing(node: cst.CSTNode, changed: cst.CSTNode) -> bool:
    """Whether all that a mutant takes away is a text that is prose, or puts None, as false as it is, for False."""
    if isinstance(node, cst.Assign | cst.AnnAssign):
        return node.value is not None and (_is_prose(node.value) or m.matches(node.value, m.Name("False")))
    if isinstance(node, cst.Call) and isinstance(changed, cst.Call):
        kept = {id(argument) for argument in changed.args}
        lost = [argument.value for argument in node.args if id(argument) not in kept]
        is_none = len(changed.args) == len(node.args)
        return any(_is_prose(value) or (is_none and m.matches(value, m.Name("False"))) for value in lost)
    return False


def _difference(before: list[str], after: list[str]) -> dict[str, str]:
    was, becomes = ([line.strip() for line in lines] for lines in (before, after))
    while len(was) > 1 and len(becomes) > 1 and was[0] == becomes[0]:
        was, becomes = was[1:], becomes[1:]
    while len(was) > 1 and len(becomes) > 1 and was[-1] == becomes[-1]:
        was, becomes = was[:-1], becomes[:-1]
    return {"was": " ".join(was), "becomes": " ".join(becomes)}


Changes = Iterator[tuple[cst.CSTNode, cst.CSTNode]]  # a node, and what stands in its place


def _mutmut(operator: Callable[[Any], Iterable[cst.CSTNode]]) -> Callable[[Any], Changes]:
    def changes(node: cst.CSTNode) -> Changes:
        found = list(operator(node))
        # Of a text one change is enough: mutmut's other two, of case, show what the first one shows.
        yield from ((node, changed) for changed in (found[:1] if operator is operator_string else found))

    return changes


def _swap_extremes(node: cst.Call) -> Changes:
    if isinstance(node.func, cst.Name) and node.func.value in ("min", "max"):
        yield node.func, cst.Name("min" if node.func.value == "max" else "max")


def _shorten_order(node: cst.Lambda) -> Changes:
    """Leave out one part of what things are ordered by."""
    yield from _shorten(node.body)


def _shorten_return(node: cst.Return) -> Changes:
    yield from _shorten(node.value)


def _shorten(value: cst.BaseExpression | None) -> Changes:
    if isinstance(value, cst.Tuple) and len(value.elements) > 1:
        for i in range(len(value.elements)):
            rest = [element.with_changes(comma=cst.Comma()) for j, element in enumerate(value.elements) if j != i]
            yield value, value.with_changes(elements=rest)


def _negate(node: cst.If | cst.While | cst.CompIf) -> Changes:
    """Negate a condition that has no operator which mutmut would change."""
    if isinstance(node.test, cst.Name | cst.Attribute | cst.Call | cst.NamedExpr):
        yield node.test, cst.UnaryOperation(cst.Not(), node.test)


def _leave_out(node: cst.SimpleStatementLine) -> Changes:
    """Leave out a call, a refusal or an early return."""
    for statement in node.body:
        if m.matches(statement, m.Expr(value=m.Call() | m.Yield() | m.Await()) | m.Raise() | m.Return(value=None)):
            yield statement, cst.Pass()


OPERATORS: list[tuple[Any, Callable[[Any], Changes]]] = [
    *((kind, _mutmut(operator)) for kind, operator in mutation_operators if kind is not cst.Match),
    (cst.Call, _swap_extremes),
    (cst.Lambda, _shorten_order),
    (cst.Return, _shorten_return),
    ((cst.If, cst.While, cst.CompIf), _negate),
    (cst.SimpleStatementLine, _leave_out),
]
