"""Named tasks, each run on its own thread as soon as those that it needs are done; independent of models.

`Tasks` is declared first: `add` returns a typed `Task`, whose result later tasks take as an argument. Then `begin` runs
all of them, and `Task.wait` returns a result.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, overload


class Task[Result]:
    """One task; its result is there once it is done."""

    def __init__(
        self,
        name: str,
        run: Callable[..., Result],
        needs: "Sequence[Task[Any]]",
        after: "Sequence[Task[Any]]",
        wait_for: "Callable[[Task[Result]], None]",
    ) -> None:
        self.name = name
        self.run = run
        self.needs, self.after = needs, after
        self.has_begun = self.is_done = False
        self.begin_s = self.end_s = 0.0  # on the clock of `time.monotonic`, once the task is done
        self.result: Result  # set once the task is done
        self._wait_for = wait_for

    @property
    def waits_for(self) -> "tuple[Task[Any], ...]":
        """All tasks that must be done before this one begins."""
        return (*self.needs, *self.after)

    @property
    def row(self) -> str:
        """This task as a row of `Tasks.table`."""
        needs = ", ".join([*(f"`{task.name}`" for task in self.needs), *(f"(`{task.name}`)" for task in self.after)])
        return f"| `{self.name}` | {needs} | {(self.run.__doc__ or '').strip().partition('\n')[0]} |"

    def wait(self) -> Result:
        """Wait for this task and return its result.

        Raises:
            BaseException: the first failure of any task, immediately.
        """
        self._wait_for(self)
        return self.result


class Tasks[Context]:
    """Tasks with one context. Threads are daemons, so that a failed run can end during a compilation."""

    def __init__(self) -> None:
        self._tasks: list[Task[Any]] = []
        self._done: list[Task[Any]] = []
        self._failures: dict[Task[Any], BaseException] = {}
        self._changed = threading.Condition()

    @overload
    def add[R](self, name: str, run: Callable[[Context], R], /, *, after: Sequence[Task[Any]] = ()) -> Task[R]: ...
    @overload
    def add[A, R](
        self, name: str, run: Callable[[Context, A], R], a: Task[A], /, *, after: Sequence[Task[Any]] = ()
    ) -> Task[R]: ...
    @overload
    def add[A, B, R](
        self,
        name: str,
        run: Callable[[Context, A, B], R],
        a: Task[A],
        b: Task[B],
        /,
        *,
        after: Sequence[Task[Any]] = (),
    ) -> Task[R]: ...
    @overload
    def add[A, B, C, R](
        self,
        name: str,
        run: Callable[[Context, A, B, C], R],
        a: Task[A],
        b: Task[B],
        c: Task[C],
        /,
        *,
        after: Sequence[Task[Any]] = (),
    ) -> Task[R]: ...
    @overload
    def add[A, B, C, D, R](
        self,
        name: str,
        run: Callable[[Context, A, B, C, D], R],
        a: Task[A],
        b: Task[B],
        c: Task[C],
        d: Task[D],
        /,
        *,
        after: Sequence[Task[Any]] = (),
    ) -> Task[R]: ...
    @overload
    def add[A, B, C, D, E, R](
        self,
        name: str,
        run: Callable[[Context, A, B, C, D, E], R],
        a: Task[A],
        b: Task[B],
        c: Task[C],
        d: Task[D],
        e: Task[E],
        /,
        *,
        after: Sequence[Task[Any]] = (),
    ) -> Task[R]: ...
    def add(
        self, name: str, run: Callable[..., Any], /, *needs: Task[Any], after: Sequence[Task[Any]] = ()
    ) -> Task[Any]:
        """Declare a task.

        Args:
            name: of the task and its thread.
            run: called with the context and the results of `needs`.
            needs: tasks declared before.
            after: tasks that must be done first, but whose results are not passed.
        """
        task = Task(name, run, needs, after, self._wait_for)
        self._tasks.append(task)
        return task

    def begin(self, context: Context, failed: threading.Event | None = None) -> None:
        """Run all tasks; start those without dependencies now.

        Args:
            context: the first argument of every task.
            failed: set when a task fails, so that others can end early.
        """
        self._begin_unblocked(context, failed or threading.Event())

    @property
    def done(self) -> list[Task[Any]]:
        """The finished tasks in the order in which they ended."""
        with self._changed:
            return list(self._done)

    def wait(self) -> None:
        """Wait until every task is done.

        Raises:
            BaseException: as `Task.wait`.
        """
        self._wait_until(lambda: len(self._done) == len(self._tasks))

    def table(self) -> str:
        """Return the tasks as a Markdown table: each task, its dependencies, and what it does.

        Tasks in parentheses must be done first, but their results are not passed.
        """
        return "\n".join(["| task | needs (after) | does |", "|---|---|---|", *(task.row for task in self._tasks)])

    def _wait_for(self, task: Task[Any]) -> None:
        self._wait_until(lambda: task.is_done)

    def _wait_until(self, is_over: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._failures or is_over())
            # Of several failures, that of the task declared first: causes precede consequences.
            for task in self._tasks:
                if task in self._failures:
                    raise self._failures[task]

    def _begin_unblocked(self, context: Context, failed: threading.Event) -> None:
        """Start a thread for every task whose dependencies are done, unless a task has failed."""
        with self._changed:
            for task in self._tasks if not self._failures else ():
                if not task.has_begun and all(other.is_done for other in task.waits_for):
                    task.has_begun = True
                    arguments = (task, context, failed)
                    threading.Thread(target=self._run, args=arguments, name=task.name, daemon=True).start()

    def _run(self, task: Task[Any], context: Context, failed: threading.Event) -> None:
        task.begin_s = time.monotonic()
        try:
            result = task.run(context, *(needed.result for needed in task.needs))
        except BaseException as error:
            with self._changed:
                self._failures[task] = error
                failed.set()
                self._changed.notify_all()
            return
        with self._changed:
            task.result, task.end_s, task.is_done = result, time.monotonic(), True
            self._done.append(task)
            self._changed.notify_all()
        self._begin_unblocked(context, failed)
