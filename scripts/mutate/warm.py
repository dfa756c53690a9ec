"""Trials without a start: a process that has imported the service and collected the tests forks each of them.

A change inside a function is put into the functions that are there already. What runs on import needs a process that
has imported nothing, so such changes are tried the long way.
"""

import gc
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from inspect import CO_OPTIMIZED
from multiprocessing import Pipe
from pathlib import Path
from types import CodeType, FunctionType

import pytest

from scripts.mutate.mutants import Mutant
from scripts.mutate.trials import PYTEST_OPTIONS, Tree, in_order, reap

CANNOT = None  # instead of an exit status: the change is outside of functions, or of those that can be changed


class Warm:
    """A process that tries changes of functions, one at a time, in one tree."""

    def __init__(self, folder: Path, tree: Tree, selection: Sequence[str]) -> None:
        self._tree = tree
        self._unchanged = Tree(folder)
        self._selection = selection
        self._ours, self._theirs = Pipe()
        self._pid = self._unchanged.start(self._serve)
        self._theirs.close()
        if self._ours.recv() != "collected":
            raise SystemExit(f"the tests cannot be collected:\n{self._unchanged.output[-5000:]}")

    def begin(self, mutant: Mutant, tests: Mapping[str, float], patience_s: float) -> None:
        """Try a change that is already in the tree's file; no other trial may be under way."""
        self._ours.send((mutant, tests, patience_s))

    def is_done(self) -> bool:
        """Whether the trial has ended."""
        return self._ours.poll()

    def result(self) -> int | None:
        """Return the exit status of the trial, or `CANNOT`."""
        return self._ours.recv()

    def end(self) -> None:
        """End the process."""
        self._ours.close()
        reap(self._pid, until=0)

    def _serve(self) -> int:
        self._ours.close()
        status = int(pytest.main([*PYTEST_OPTIONS, "-x", *self._selection], plugins=[self]))
        self._theirs.send(status)  # only if nothing was collected
        return status

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run requests instead of tests, for as long as there are any."""
        functions: dict[str, list[FunctionType]] = {}
        for found in gc.get_objects():
            if isinstance(found, FunctionType):
                functions.setdefault(found.__code__.co_filename, []).append(found)
        gc.collect()
        gc.freeze()
        self._theirs.send("collected")
        while True:
            try:
                mutant, tests, patience_s = self._theirs.recv()
            except EOFError:
                os._exit(0)
            original = Path(mutant.path).read_text()
            codes = changed_codes(mutant, original, functions.get(str(Path(mutant.path).absolute()), []))
            if not codes:
                self._theirs.send(CANNOT)
                continue
            pid = self._tree.start(partial(self._try, session, tests, codes))
            until = time.monotonic() + patience_s
            while (status := reap(pid, until=until)) is None:
                time.sleep(0.005)
            self._theirs.send(status)

    def _try(
        self, session: pytest.Session, tests: Mapping[str, float], codes: Sequence[tuple[FunctionType, CodeType]]
    ) -> int:
        tempfile.tempdir = None  # the tree's own from now on
        loopback = self._unchanged.root / "tests/loopback"  # which tests/conftest.py has put in front
        os.environ["PYTHONPATH"] = os.pathsep.join([str(loopback), os.environ["PYTHONPATH"]])
        os.environ["LOCAL_MODEL_CACHE"] = tempfile.mkdtemp()  # no trial finds what another one has left
        for function, code in codes:
            function.__code__ = code
        items = in_order(session.items, tests)
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if session.shouldfail or session.shouldstop:
                return int(pytest.ExitCode.TESTS_FAILED)
        return int(pytest.ExitCode.TESTS_FAILED if session.testsfailed else pytest.ExitCode.OK)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note which test has failed."""
        if report.failed:
            self._tree.failure.write_text(report.nodeid)


def changed_codes(
    mutant: Mutant, original: str, functions: Sequence[FunctionType]
) -> list[tuple[FunctionType, CodeType]]:
    """Return the functions that a mutant changes, with their new code; none if it changes anything besides."""
    before, after = (compile(text, mutant.path, "exec", dont_inherit=True) for text in (original, mutant.source))
    if _without_functions(before) != _without_functions(after):
        return []
    changed = [
        (old, new) for old, new in zip(_outermost(before), _outermost(after), strict=True) if not _same(old, new)
    ]
    found = [
        (function, new)
        for old, new in changed
        for function in functions
        if (function.__qualname__, function.__code__.co_firstlineno) == (old.co_qualname, old.co_firstlineno)
        and function.__code__.co_freevars == new.co_freevars
    ]
    return found if len(changed) == 1 else []


def _without_functions(code: CodeType) -> tuple[object, ...]:
    """Return what a module's or class's own code does: its instructions and constants, classes inside included."""
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    constants = [repr(const) for const in code.co_consts if not isinstance(const, CodeType)]
    classes = tuple(_without_functions(one) for one in inner if not one.co_flags & CO_OPTIMIZED)
    return code.co_code, code.co_names, tuple(constants), len(inner), classes


def _outermost(code: CodeType) -> Iterator[CodeType]:
    for const in code.co_consts:
        if isinstance(const, CodeType):
            if const.co_flags & CO_OPTIMIZED:
                yield const
            else:
                yield from _outermost(const)


def _same(one: CodeType, other: CodeType) -> bool:
    """Whether two codes do the same, wherever their lines are."""

    def is_same_constant(a: object, b: object) -> bool:
        return _same(a, b) if isinstance(a, CodeType) and isinstance(b, CodeType) else repr(a) == repr(b)

    return (
        (one.co_code, one.co_names, one.co_varnames, one.co_freevars, len(one.co_consts))
        == (other.co_code, other.co_names, other.co_varnames, other.co_freevars, len(other.co_consts))
        and one.co_exceptiontable == other.co_exceptiontable
        and all(map(is_same_constant, one.co_consts, other.co_consts))
    )
