"""Which tests are to notice a change, and in which order they are tried."""

import json
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import coverage
import pytest

from scripts.mutate.mutants import Mutant
from scripts.mutate.trials import PYTEST_OPTIONS, Tree, reap

PATIENCE_S, SLOWER = 20.0, 5  # a test may take this, and this many times what it takes without a change


@dataclass(frozen=True)
class Tests:
    """The tests of a mutant, the likeliest to notice it first, and how long each may take."""

    limits_s: dict[str, float]
    patience_s: float  # for all of them
    from_nothing: bool  # whether the change shows only in a process that has imported nothing before


TestsOf = Callable[[Mutant], Tests]


class Killers:
    """The tests that noticed changes, in this run or earlier ones: they notice similar ones first."""

    def __init__(self, of_key: dict[str, str]) -> None:
        self._of_key = of_key
        self._of_scope: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)

    def note(self, mutant: Mutant, killer: str) -> None:
        """Remember the test that noticed a change."""
        if killer:
            self._of_key[mutant.key] = killer
            self._of_scope[mutant.path, mutant.scope][killer] += 1

    def rank(self, mutant: Mutant, test: str) -> tuple[bool, int]:
        """Return what a test sorts by, the likeliest killer of a mutant first."""
        return self._of_key.get(mutant.key) != test, -self._of_scope[mutant.path, mutant.scope][test]


def survey(tree: Tree, selection: Sequence[str], killers: Killers) -> TestsOf:
    """Run all tests of a place once, and return a function from a mutant to its tests and their seconds."""
    run_once = _Run()
    report = tree.folder / "survey.json"

    def run() -> int:
        status = run_once.run(selection)
        report.write_text(json.dumps([run_once.seconds, run_once.lines()]))
        return status

    pid = tree.start(run, writes_bytecode=True)
    while (status := reap(pid, until=time.monotonic() + 1)) is None:
        time.sleep(0.1)
    if status != 0:
        raise SystemExit(f"the tests fail without any change (status {status}):\n{tree.output[-5000:]}")
    seconds, lines = json.loads(report.read_text())

    def tests_of(mutant: Mutant) -> Tests:
        tests = set(seconds)
        from_nothing = True
        if mutant.function_lines:
            ran = lines.get(mutant.path, {})
            of_function = {test for line in mutant.function_lines for test in ran.get(str(line), ())}
            # A function's own tests. All, if it runs on import; and where no test runs it in this process, those of
            # the files whose names begin as its own does, which may start other processes.
            mirror = f"/test_{Path(mutant.path).stem.partition('_')[0]}"
            from_nothing = "" in of_function or not of_function
            if "" not in of_function:
                tests = of_function or {test for test in seconds if mirror in test}
        # First what noticed such a change before, then those that have its words in their names, then quick ones.
        words = set(re.findall(r"[a-z]{4,}", mutant.was.lower()))

        def rank(test: str) -> tuple[tuple[bool, int], bool, float]:
            return killers.rank(mutant, test), not any(word in test for word in words), seconds[test]

        limits_s = {test: PATIENCE_S + SLOWER * seconds[test] for test in sorted(tests, key=rank)}
        return Tests(limits_s, PATIENCE_S + SLOWER * sum(seconds[test] for test in tests), from_nothing)

    return tests_of


class _Run:
    """How long each test takes, and which lines it runs: a run of all tests of a place on the unchanged tree."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._coverage = coverage.Coverage(data_file=None, source=["service"], config_file=False)

    def run(self, selection: Sequence[str]) -> int:
        """Run the tests that pytest's arguments select."""
        self._coverage.start()
        status = int(pytest.main([*PYTEST_OPTIONS, *selection], plugins=[self]))
        self._coverage.stop()
        return status

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item):  # noqa: ANN202 - pytest's own
        """Note what one test runs, fixtures included."""
        self._coverage.switch_context(item.nodeid)
        start = time.monotonic()
        done = yield
        self.seconds[item.nodeid] = time.monotonic() - start
        self._coverage.switch_context("")
        return done

    def lines(self) -> dict[str, dict[int, list[str]]]:
        """Return the tests that ran each line of each file; "" stands for an import."""
        data = self._coverage.get_data()
        root = Path.cwd()
        return {str(Path(file).relative_to(root)): data.contexts_by_lineno(file) for file in data.measured_files()}
