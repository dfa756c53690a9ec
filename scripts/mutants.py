"""Change the service at places that a seed draws, one at a time, and report which changes the tests notice.

`python -m scripts.mutants [--seed N] [--count N] [--marks EXPRESSION]`, in a clone: it edits files in place. One run
of all tests says which of them execute each place, in the process of pytest; `--trace FOLDER` keeps what it says.
A change is tried against these, the cheapest first; what they let pass survives, and so does what none executes.
"""

import argparse
import ast
import collections
import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import jax
import pytest

FOLDERS = ("api", "engine", "kernels", "storage", "text", "weights")
COMPARISONS = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="}
COMPARISONS |= {ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in"}
SUMS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*"}
MAX_TESTS, MAX_TESTS_S = 300, 90  # of the tests that execute a place, those that are run
START_S = 120  # of the processor, beside the tests: imports and compiled programs


class Mutant(NamedTuple):
    """One change of a file: the node that is replaced, by its number, and the text instead."""

    path: Path
    number: int
    line: int
    lines: range  # of the statement, up to the node: what is executed with it
    before: str
    after: str


def mutants_of(path: Path) -> Iterator[Mutant]:
    """Yield the changes of one file: comparisons, sums, conditions and small numbers inside of functions."""
    tree = ast.parse(path.read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {id(node) for function in functions for statement in function.body for node in ast.walk(statement)}
    raised = {id(node) for outer in ast.walk(tree) if isinstance(outer, ast.Raise) for node in ast.walk(outer)}
    first_lines = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):  # outer statements come before those in them
            first_lines |= {id(part): node.lineno for part in ast.walk(node)}
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
            lines = range(first_lines[id(node)], node.end_lineno + 1)
            yield Mutant(path, number, node.lineno, lines, ast.unparse(node), after)


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
    for folder in FOLDERS:
        found = [mutant for path in sorted(Path("service", folder).rglob("*.py")) for mutant in mutants_of(path)]
        chosen += random.Random(f"{seed} {folder}").sample(found, count // len(FOLDERS))
    return chosen


class Trace:
    """A plugin of pytest that writes which tests execute the statements of the changes, and their time."""

    def __init__(self, folder: Path, mutants: list[Mutant]) -> None:
        self.file = (folder / f"{os.getpid()}.jsonl").open("a")
        self.rows: dict[tuple[str, int], set[int]] = collections.defaultdict(set)
        for row, mutant in enumerate(mutants):
            for line in mutant.lines:
                self.rows[str(mutant.path.resolve()), line].add(row)
        self.executed: set[int] = set()
        lines = sys.monitoring.events.LINE
        sys.monitoring.use_tool_id(sys.monitoring.COVERAGE_ID, "mutants")
        sys.monitoring.register_callback(sys.monitoring.COVERAGE_ID, lines, self.enter)
        sys.monitoring.set_events(sys.monitoring.COVERAGE_ID, lines)

    def enter(self, code: CodeType, line: int) -> object:
        rows = self.rows.get((code.co_filename, line))
        if rows is None:
            return sys.monitoring.DISABLE
        self.executed |= rows
        return None

    def pytest_unconfigure(self) -> None:
        sys.monitoring.free_tool_id(sys.monitoring.COVERAGE_ID)

    def write(self, test: str, spent_s: float) -> None:
        json.dump({"test": test, "spent_s": spent_s, "rows": sorted(self.executed)}, self.file)
        self.file.write("\n")
        self.file.flush()
        self.executed.clear()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self.write(report.nodeid, 0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # Other tests of the file may have what was made before this one.
        test = re.sub(r"@[^@\]]*$", "", report.nodeid)  # the group that pytest-xdist adds
        self.write(test if report.when == "call" else test.partition("::")[0], report.duration)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Name the folder for a trace, the seed and the count of changes."""
    parser.addoption("--mutants", nargs=3, metavar=("FOLDER", "SEED", "COUNT"))


def pytest_configure(config: pytest.Config) -> None:
    """Trace the tests of this process, but not where it only hands them to others."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses"):
        folder, seed, count = config.getoption("--mutants")
        config.pluginmanager.register(Trace(Path(folder), drawn(int(seed), int(count))))


def traced(folder: Path) -> dict[int, list[str]]:
    """Return the tests to run for each change: one of each function and file first, and the cheapest first."""
    seconds: dict[str, float] = collections.Counter()
    tests: dict[int, set[str]] = collections.defaultdict(set)
    for path in folder.glob("*.jsonl"):
        for line in path.open():
            report = json.loads(line)
            seconds[report["test"]] += report["spent_s"]
            for row in report["rows"]:
                tests[row].add(report["test"])
    for test, spent_s in list(seconds.items()):
        if "::" in test:
            seconds[test.partition("::")[0]] += spent_s
    chosen = {}
    for row, found in tests.items():
        ranks: dict[str, int] = collections.Counter()
        order = []
        for test in sorted(found, key=lambda test: (seconds[test], test)):
            order.append((ranks[test.partition("[")[0]], seconds[test], test))
            ranks[test.partition("[")[0]] += 1
        spent_s, chosen[row] = 0.0, []
        for _, test_s, test in sorted(order)[:MAX_TESTS]:
            if not chosen[row] or spent_s + test_s < MAX_TESTS_S:
                chosen[row].append(test)
                spent_s += test_s
    return chosen


def run_tests(arguments: list[str], output: Path) -> None:
    """Run pytest in this process and end it, as a command would."""
    with output.open("w") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    os.setpgid(0, 0)
    status = pytest.main(arguments)
    sys.stdout.flush()
    os._exit(status)


def tried(mutant: Mutant, arguments: list[str], output: Path) -> str:
    """Return which test fails with a change, or what else becomes of it."""
    source = mutant.path.read_text()
    mutant.path.write_text(applied(mutant))
    try:
        # A fork of this process has imported JAX, which takes longer than most tests.
        process = multiprocessing.get_context("fork").Process(target=run_tests, args=(arguments, output))
        process.start()
        process.join(START_S + 3 * MAX_TESTS_S)
        if process.is_alive():
            os.killpg(process.pid, signal.SIGKILL)
            process.join()
            return "does not end"
    finally:
        mutant.path.write_text(source)
    if process.exitcode == pytest.ExitCode.USAGE_ERROR:  # a test is not there: the trace is older than the tests
        raise SystemExit(output.read_text())
    failed = [line for line in output.read_text().splitlines() if line.startswith(("FAILED", "ERROR"))]
    return "survives" if process.exitcode in (0, 5) else (failed or ["fails"])[0].partition(" - ")[0]


def main() -> int:
    """Try each change and print a row of a table for it; return 1 if one survived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--marks", default="not slow and not grid")
    parser.add_argument("--trace", type=Path, default=Path(".cache/mutants"), help="made by the first run")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of rows")
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    sys.dont_write_bytecode = True  # of a change that is gone within the second that a file's time is counted in
    arguments = ["-q", "-pno:cacheprovider", "-m", options.marks]
    if not list(options.trace.glob("*.jsonl")):
        options.trace.mkdir(parents=True, exist_ok=True)
        trace = ["--mutants", str(options.trace.resolve()), str(options.seed), str(options.count)]
        of_trace = ["-n2", "--dist=loadgroup", "-pscripts.mutants", *trace]
        subprocess.run([sys.executable, "-m", "pytest", *arguments, *of_trace], check=False)
    tests = traced(options.trace)
    num_survivors = 0
    for row, mutant in enumerate(drawn(options.seed, options.count)):
        if options.only and row not in options.only:
            continue
        names, start_s = options.trace / "names", time.monotonic()
        names.write_text("\n".join(tests.get(row, [])))
        outcome = "survives: no test executes it"
        if row in tests:
            outcome = tried(mutant, [*arguments, "-x", f"@{names}"], names.with_suffix(".log"))
        num_survivors += outcome.startswith("survives")
        place, spent_s = f"{mutant.path}:{mutant.line}", time.monotonic() - start_s
        print(f"| {row} | `{place}` | `{mutant.before}` | `{mutant.after}` | {outcome} | {spent_s:.0f} s |", flush=True)
    return int(num_survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
