"""Trials, several at a time: each worker has a tree, and a process that is warm."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from scripts.mutate.mutants import Mutant
from scripts.mutate.survey import Tests, TestsOf
from scripts.mutate.trials import Tree, reap, run_tests
from scripts.mutate.warm import CANNOT, Warm


@dataclass(frozen=True)
class Trial:
    """How a mutant fared."""

    mutant: Mutant
    verdict: str
    killer: str = ""  # the test that failed
    output: str = ""
    seconds: float = 0.0


class Worker:
    """Tries one mutant at a time."""

    def __init__(self, tree: Tree, warm: Warm) -> None:
        self._tree = tree
        self._warm = warm
        self._pid: int | None = None  # of a trial that starts from nothing; None if the warm process has it

    def begin(self, mutant: Mutant, tests: Tests) -> None:
        """Begin the trial of a mutant."""
        self._mutant, self._tests, self._began = mutant, tests, time.monotonic()
        self._tree.change(mutant.path, mutant.source)
        if tests.from_nothing:
            self._begin_from_nothing()
        else:
            self._warm.begin(mutant, tests.limits_s, tests.patience_s)

    def poll(self) -> Trial | None:
        """Return the trial that was begun; None while it is under way."""
        if self._pid is not None:
            status = reap(self._pid, until=self._began + self._tests.patience_s)
            if status is None:
                return None
        elif not self._warm.is_done():
            return None
        elif (status := self._warm.result()) is CANNOT:
            self._begin_from_nothing()
            return None
        self._pid = None
        self._tree.restore(self._mutant.path)
        killer = self._tree.failure.read_text() if self._tree.failure.exists() else ""
        return Trial(self._mutant, _verdict(status), killer, self._tree.output, time.monotonic() - self._began)

    def _begin_from_nothing(self) -> None:
        self._pid = self._tree.start(partial(run_tests, self._tests.limits_s, self._tree.failure))


def try_all(
    mutants: Sequence[Mutant], workers: Sequence[Worker], tests_of: TestsOf, *, end_s: float
) -> Iterator[Trial]:
    """Try mutants, one with each worker at a time, and yield what became of each; begin none after `end_s`."""
    waiting = list(reversed(mutants))
    idle, busy = list(workers), list[Worker]()
    while waiting or busy:
        while waiting and idle:
            mutant = waiting.pop()
            if time.monotonic() > end_s:
                waiting.clear()
                break
            tests = tests_of(mutant)
            if not tests.limits_s:
                yield Trial(mutant, "survived")
                continue
            busy.append(idle.pop())
            busy[-1].begin(mutant, tests)
        for worker in list(busy):
            if (trial := worker.poll()) is not None:
                busy.remove(worker)
                idle.append(worker)
                yield trial
        time.sleep(0.005)


def _verdict(status: int | None) -> str:
    match status:
        case 0:
            return "survived"
        case 5:
            return "broken"  # no test was found, so that the trial says nothing
        case -14:
            return "timeout"
    return "killed"
