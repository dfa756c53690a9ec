"""Executables that are built, that is loaded or compiled, in the background; a lookup waits for the one it needs.

Names form two groups: the first ones start immediately, the rest starts with `build_rest`. Within a group they are
built in the order given, unless `prefer` moves some to the front.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import override

from service.compile.program import Executable


@dataclass(frozen=True)
class BuildPlan:
    """How executables are loaded or compiled, and by how many threads."""

    build: Callable[[str], Executable]  # loads or compiles one; called on any thread
    num_first_threads: int
    num_rest_threads: int
    stack_bytes: int = 0  # of each thread; 0 for the system's default
    # Whether a lookup may build an executable on its own thread; if not, it waits for a thread with a large stack.
    builds_on_lookup: bool = True
    on_rest_thread: Callable[[], None] = lambda: None  # called once on each thread that builds some of the rest


class LazyExecutables(Mapping[str, Executable]):
    """A mapping from names to executables that may still be loading or compiling."""

    def __init__(self, names: Sequence[str], num_first: int, plan: BuildPlan) -> None:
        """Start to build the first `num_first` of the names, which are in order of need."""
        self._plan = plan
        self._lock = threading.Lock()
        self._futures: dict[str, Future[Executable]] = {name: Future() for name in names}
        self._queue = list(names[:num_first])
        self._rest = list(names[num_first:])
        self._first = frozenset(self._queue)
        self._num_threads = 0
        self.num_built = 0  # successfully, so far
        self._num_ended = 0  # so far, including failures
        self._start_threads(plan.num_first_threads)

    @override
    def __getitem__(self, name: str) -> Executable:
        """Return an executable; one that has not been started is built next, or on this thread.

        Raises:
            Exception: building it failed.
        """
        future = self._futures[name]
        if self._plan.builds_on_lookup and self._claim(name):
            self._build(name)
        elif not future.done():
            self.prefer([name])
        return future.result()

    @override
    def __contains__(self, name: object) -> bool:
        """Return whether the name is known, without waiting for its executable."""
        return name in self._futures

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._futures)

    @override
    def __len__(self) -> int:
        return len(self._futures)

    def is_usable(self, name: str) -> bool:
        """Return whether a lookup returns immediately or builds the executable itself."""
        future = self._futures[name]
        return self._plan.builds_on_lookup or (future.done() and future.exception() is None)

    @property
    def is_done(self) -> bool:
        """Whether all executables have been built or have failed."""
        return self._num_ended == len(self._futures)

    def prefer(self, names: Sequence[str]) -> None:
        """Build these executables, in this order, before all others that have not been started."""
        with self._lock:
            waiting = [name for name in names if name in self._queue or name in self._rest]
            self._rest = [name for name in self._rest if name not in waiting]
            self._queue = waiting + [name for name in self._queue if name not in waiting]
        self._start_threads(1)

    def build_rest(self) -> None:
        """Start to build all remaining executables. Idempotent."""
        with self._lock:
            self._queue += self._rest
            self._rest = []
        self._start_threads(self._plan.num_rest_threads)

    def wait(self) -> None:
        """Build the rest and wait for all executables.

        Raises:
            Exception: one of them failed; the others are built.
        """
        self.build_rest()
        errors = [error for future in self._futures.values() if (error := future.exception()) is not None]
        if errors:
            raise errors[0]

    def _start_threads(self, num_threads: int) -> None:
        with self._lock:
            num_missing = min(num_threads, len(self._queue)) - self._num_threads
            self._num_threads += max(num_missing, 0)
        for _ in range(num_missing):
            _start_thread(self._work, self._plan.stack_bytes)

    def _work(self) -> None:
        is_announced = False
        while (name := self._next()) is not None:
            if not is_announced and name not in self._first:
                self._plan.on_rest_thread()
                is_announced = True
            self._build(name)

    def _next(self) -> str | None:
        with self._lock:
            if self._queue:
                return self._queue.pop(0)
            self._num_threads -= 1
            return None

    def _claim(self, name: str) -> bool:
        with self._lock:
            for names in (self._queue, self._rest):
                if name in names:
                    names.remove(name)
                    return True
        return False

    def _build(self, name: str) -> None:
        try:
            self._futures[name].set_result(self._plan.build(name))
        except BaseException as error:
            self._futures[name].set_exception(error)
        with self._lock:
            self._num_ended += 1
            self.num_built += self._futures[name].exception() is None


_stack_lock = threading.Lock()


def _start_thread(work: Callable[[], None], stack_bytes: int) -> None:
    """Start a thread with a given stack size, which is a process-wide setting for new threads."""
    with _stack_lock:
        previous = threading.stack_size(stack_bytes)
        try:
            threading.Thread(target=work, name="executables", daemon=True).start()
        finally:
            threading.stack_size(previous)
