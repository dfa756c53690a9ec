"""A graph of named tasks, each run on its own thread as soon as its dependencies are done; independent of models."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Task:
    """A function and its dependencies."""

    name: str
    run: Callable[..., Any]  # called with the run's context and, by name, the result of each task in `needs`
    needs: tuple[str, ...] = ()
    after: tuple[str, ...] = ()  # must be done first, but their results are not passed

    @property
    def waits_for(self) -> tuple[str, ...]:
        """Names of all tasks that must be done before this one starts."""
        return (*self.needs, *self.after)

    @property
    def summary(self) -> str:
        """The first line of the function's docstring."""
        return (self.run.__doc__ or "").strip().partition("\n")[0]


@dataclass(frozen=True, slots=True)
class TaskTimes:
    """When a finished task ran, on the clock of `time.monotonic`."""

    task: Task
    begin_s: float
    end_s: float


class GraphRun:
    """One run of a graph. Threads are daemons, so that a failed run can end during a compilation."""

    def __init__(self, tasks: Sequence[Task], context: Any, failed: threading.Event | None = None) -> None:
        """Start all tasks without dependencies.

        Args:
            tasks: the graph in topological order.
            context: the first argument of every task.
            failed: set when a task fails, so that others can end early.

        Raises:
            ValueError: two tasks share a name, or one waits for a task that does not precede it.
        """
        check_graph(tasks)
        self._tasks = tuple(tasks)
        self._context = context
        self._failed = failed or threading.Event()
        self._changed = threading.Condition()
        self._begun: set[str] = set()
        self._results: dict[str, Any] = {}
        self._failures: dict[str, BaseException] = {}
        self._times: list[TaskTimes] = []
        self._begin_unblocked()

    @property
    def times(self) -> list[TaskTimes]:
        """The finished tasks in the order in which they ended."""
        with self._changed:
            return list(self._times)

    def wait(self, name: str) -> Any:
        """Wait for one task and return its result.

        Raises:
            BaseException: the first failure of any task, immediately.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failures or name in self._results)
            self._raise_failure()
            return self._results[name]

    def wait_for_all(self) -> None:
        """Wait until every task is done.

        Raises:
            BaseException: as `wait`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._failures or len(self._results) == len(self._tasks))
            self._raise_failure()

    def _raise_failure(self) -> None:
        # Of several, the first one declared: causes precede consequences.
        for task in self._tasks:
            if task.name in self._failures:
                raise self._failures[task.name]

    def _begin_unblocked(self) -> None:
        """Start a thread for every task whose dependencies are done, unless a task has failed."""
        with self._changed:
            if self._failures:
                return
            for task in self._tasks:
                if task.name not in self._begun and all(name in self._results for name in task.waits_for):
                    self._begun.add(task.name)
                    threading.Thread(target=self._run, args=(task,), name=task.name, daemon=True).start()

    def _run(self, task: Task) -> None:
        begin_s = time.monotonic()
        try:
            result = task.run(self._context, **{name: self._results[name] for name in task.needs})
        except BaseException as error:
            with self._changed:
                self._failures[task.name] = error
                self._failed.set()
                self._changed.notify_all()
            return
        with self._changed:
            self._results[task.name] = result
            self._times.append(TaskTimes(task, begin_s, time.monotonic()))
            self._changed.notify_all()
        self._begin_unblocked()


def check_graph(tasks: Sequence[Task]) -> None:
    """Check that names are unique and tasks are in topological order, which rules out cycles.

    Raises:
        ValueError: they are not.
    """
    declared: set[str] = set()
    for task in tasks:
        if task.name in declared:
            raise ValueError(f"two tasks are named {task.name!r}")
        if missing := [name for name in task.waits_for if name not in declared]:
            raise ValueError(f"{task.name!r} waits for {missing[0]!r}, which is not declared before it")
        declared.add(task.name)


def direct_edges(tasks: Sequence[Task]) -> list[tuple[str, str]]:
    """Return the edges of the transitive reduction, each from a task to one that waits for it."""
    by_name = {task.name: task for task in tasks}
    ancestors: dict[str, set[str]] = {}
    for task in tasks:
        ancestors[task.name] = set(task.waits_for).union(*(ancestors[name] for name in task.waits_for))
    return [
        (name, task.name)
        for task in by_name.values()
        for name in dict.fromkeys(task.waits_for)
        if not any(name in ancestors[other] for other in task.waits_for)
    ]


def describe(tasks: Sequence[Task]) -> str:
    """Return the graph as a Markdown table: each task, its dependencies, and what it does.

    Tasks in parentheses must be done first, but their results are not passed.
    """
    lines = ["| task | needs (after) | does |", "|---|---|---|"]
    for task in tasks:
        needs = ", ".join([*(f"`{name}`" for name in task.needs), *(f"(`{name}`)" for name in task.after)])
        lines.append(f"| `{task.name}` | {needs} | {task.summary} |")
    return "\n".join(lines)
