"""Change the service at places that a seed draws, one at a time, and report which changes the tests notice.

`python -m scripts.mutants [--seed N] [--count N] [--marks EXPRESSION]`, in a clone: it edits files in place. Each
change is tried against the tests of its folder; what they let pass survives.
"""

import argparse
import ast
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# Folders of the service, and where their tests lie.
TESTS = {
    "api": ("tests/api",),
    "engine": ("tests/engine", "tests/parity"),
    "kernels": ("tests/kernels", "tests/parity", "tests/models"),
    "storage": ("tests/storage", "tests/checkpoint"),
    "text": ("tests/text", "tests/api"),
    "weights": ("tests/weights", "tests/checkpoint"),
}
COMPARISONS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="}
COMPARISONS |= {ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in"}
SUMS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*"}
TIMEOUT_S = 900


class Mutant(NamedTuple):
    """One change of a file: the node that is replaced, by its number, and the text instead."""

    path: Path
    number: int
    line: int
    before: str
    after: str


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yield the changes of one file: comparisons, sums, conditions and small numbers inside of functions."""
    tree = ast.parse(path.read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {id(node) for function in functions for statement in function.body for node in ast.walk(statement)}
    raised = {id(node) for outer in ast.walk(tree) if isinstance(outer, ast.Raise) for node in ast.walk(outer)}
    for number, node in enumerate(ast.walk(tree)):
        if id(node) not in inside or id(node) in raised:
            continue
        after = None
        match node:
            case ast.Compare(left=left, ops=[operation], comparators=[right]) if type(operation) in COMPARISONS:
                after = f"({ast.unparse(left)} {COMPARISONS[type(operation)]} {ast.unparse(right)})"
            case ast.BinOp(left=left, op=operation, right=right) if type(operation) in SUMS:
                after = f"({ast.unparse(left)} {SUMS[type(operation)]} {ast.unparse(right)})"
            case ast.Constant(value=bool(value)):
                after = str(not value)
            case ast.Constant(value=int(value)) if value < 100:
                after = str(value + 1)
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                after = f"({ast.unparse(operand)})"
        if after is not None:
            yield Mutant(path, number, node.lineno, ast.unparse(node), after)


def applied(mutant: Mutant) -> str:
    """Return the source of a file with a change."""
    source = mutant.path.read_text()
    node = next(node for number, node in enumerate(ast.walk(ast.parse(source))) if number == mutant.number)
    lines = source.splitlines(keepends=True)
    head = lines[node.lineno - 1].encode()[: node.col_offset].decode()
    tail = lines[node.end_lineno - 1].encode()[node.end_col_offset :].decode()
    return "".join([*lines[: node.lineno - 1], head + mutant.after + tail, *lines[node.end_lineno :]])


def drawn(seed: int, count: int) -> list[Mutant]:
    """Return as many changes of each folder, drawn by a seed."""
    chosen: list[Mutant] = []
    for folder in TESTS:
        found = [mutant for path in sorted(Path("service", folder).rglob("*.py")) for mutant in mutants_of(path)]
        chosen += random.Random(f"{seed} {folder}").sample(found, count // len(TESTS))
    return chosen


def main() -> int:
    """Try each change and print a row of a table for it; return 1 if one survived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--marks", default="not slow and not grid")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of rows")
    options = parser.parse_args()
    num_survivors = 0
    for row, mutant in enumerate(drawn(options.seed, options.count)):
        if options.only and row not in options.only:
            continue
        source = mutant.path.read_text()
        mutant.path.write_text(applied(mutant))
        try:
            tests = TESTS[mutant.path.parts[1]]
            command = [sys.executable, "-m", "pytest", "-q", "-x", "-pno:cacheprovider", "-m", options.marks, *tests]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
            failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
            outcome = "survives" if done.returncode == 0 else (failed or ["fails"])[0].partition(" - ")[0]
        except subprocess.TimeoutExpired:
            outcome = "does not end"
        finally:
            mutant.path.write_text(source)
        num_survivors += outcome == "survives"
        place = f"{mutant.path}:{mutant.line}"
        print(f"| {row} | `{place}` | `{mutant.before}` | `{mutant.after}` | {outcome} |", flush=True)
    return int(num_survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
