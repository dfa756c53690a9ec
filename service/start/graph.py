"""A graph of named parts, each run on a thread of its own as soon as what it needs is done. Knows nothing of models."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Part:
    """One node: a function, and the parts whose results it takes."""

    name: str
    run: Callable[..., Any]  # called with the run's context and, by name, the result of each part in `needs`
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()  # must be done first, but their results are not taken

    @property
    def waits_for(self) -> tuple[str, ...]:
        """Names of every part that must be done before this one begins."""
        return (*self.needs, *self.after)

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (self.run.__doc__ or "").strip().partition("\n")[0]


@dataclass(frozen=True, slots=True)
class PartTimes:
    """When a finished part ran, on the clock of `time.monotonic`."""

    part: Part
    begin_s: float
    end_s: float


class GraphRun:
    """One run of a graph. Threads are daemons, so a failed run ends while one of them is deep in a compilation."""

    def __init__(self, parts: Sequence[Part], context: Any, failed: threading.Event | None = None) -> None:
        """Begin every part that waits for nothing.

        Args:
            parts: the graph; a part comes after those that it waits for.
            context: the first argument of every part.
            failed: set when a part fails, so that others can end early.

        Raises:
            ValueError: two parts share a name, or one waits for a part that does not precede it.
        """
        check_graph(parts)
        self._parts = tuple(parts)
        self._context = context
        self._failed = failed or threading.Event()
        self._changed = threading.Condition()
        self._begun: set[str] = set()
        self._results: dict[str, Any] = {}
        self._failures: dict[str, BaseException] = {}
        self._times: list[PartTimes] = []
        self._begin_unblocked()

    @property
    def times(self) -> list[PartTimes]:
        """The parts that are done, in the order in which they ended."""
        with self._changed:
            return list(self._times)

    def wait(self, name: str) -> Any:
        """Wait for one part and return its result.

        Raises:
            BaseException: the first failure of any part, at once, whatever the other parts are doing.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failures or name in self._results)
            self._raise_failure()
            return self._results[name]

    def wait_for_all(self) -> None:
        """Wait until every part is done.

        Raises:
            BaseException: as `wait`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failures or len(self._results) == len(self._parts))
            self._raise_failure()

    def _raise_failure(self) -> None:
        # Of several, the one that was declared first: a cause precedes its consequences.
        for part in self._parts:
            if part.name in self._failures:
                raise self._failures[part.name]

    def _begin_unblocked(self) -> None:
        """Start a thread for every part whose needs are met; none after a failure."""
        with self._changed:
            if self._failures:
                return
            for part in self._parts:
                if part.name not in self._begun and all(name in self._results for name in part.waits_for):
                    self._begun.add(part.name)
                    threading.Thread(target=self._run, args=(part,), name=part.name, daemon=True).start()

    def _run(self, part: Part) -> None:
        begin_s = time.monotonic()
        try:
            result = part.run(self._context, **{name: self._results[name] for name in part.needs})
        except BaseException as error:
            with self._changed:
                self._failures[part.name] = error
                self._failed.set()
                self._changed.notify_all()
            return
        with self._changed:
            self._results[part.name] = result
            self._times.append(PartTimes(part, begin_s, time.monotonic()))
            self._changed.notify_all()
        self._begin_unblocked()


def check_graph(parts: Sequence[Part]) -> None:
    """Check that names are unique and that every part is declared after those that it waits for.

    Raises:
        ValueError: they are not; such an order also rules out cycles.
    """
    declared: set[str] = set()
    for part in parts:
        if part.name in declared:
            raise ValueError(f"two parts are named {part.name!r}")
        if missing := [name for name in part.waits_for if name not in declared]:
            raise ValueError(f"{part.name!r} waits for {missing[0]!r}, which is not declared before it")
        declared.add(part.name)


def describe(parts: Sequence[Part]) -> str:
    """Return the graph as a table for people: each part, the parts that it waits for, and what it does."""
    rows = [("part", "needs (after)", "does")]
    for part in parts:
        after = f"({', '.join(part.after)})" if part.after else ""
        rows.append((part.name, " ".join(filter(None, [", ".join(part.needs), after])), part.summary))
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    lines = (f"{name:{widths[0]}}  {needs:{widths[1]}}  {does}".rstrip() for name, needs, does in rows)
    return "\n".join(lines) + "\n"
