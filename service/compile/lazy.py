"""Executables that are loaded or compiled in the background, in the order of need; a lookup waits for the one it needs.

Two groups of names: the first ones begin at once, the rest begins with `make_rest`. Within a group the order is that of
the names, unless `prefer` moves some to the front.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import override

from service.compile.program import Executable


@dataclass(frozen=True)
class Making:
    """How executables are made, and by how many threads."""

    make: Callable[[str], Executable]  # loads or compiles one; called on any thread
    num_first_threads: int
    num_rest_threads: int
    stack_bytes: int = 0  # of each thread; 0 for the system's default
    # Whether a lookup may make an executable on its own thread; if not, it waits for a thread with a large stack.
    lookups_make: bool = True
    on_rest_thread: Callable[[], None] = lambda: None  # called once on each thread that makes some of the rest


class LazyExecutables(Mapping[str, Executable]):
    """A mapping from names to executables whose values may still be in the making."""

    def __init__(self, names: Sequence[str], num_first: int, making: Making) -> None:
        """Begin to make the first `num_first` of the names, which are in the order of need."""
        self._making = making
        self._lock = threading.Lock()
        self._futures: dict[str, Future[Executable]] = {name: Future() for name in names}
        self._queue = list(names[:num_first])
        self._rest = list(names[num_first:])
        self._first = frozenset(self._queue)
        self._num_threads = 0
        self.num_made = 0  # so far; one whose making failed does not count
        self._num_ended = 0  # so far, failures included
        self._start_threads(making.num_first_threads)

    @override
    def __getitem__(self, name: str) -> Executable:
        """Return an executable; one whose making has not begun comes next, or is made on this thread.

        Raises:
            Exception: making it failed.
        """
        future = self._futures[name]
        if self._making.lookups_make and self._claim(name):
            self._make(name)
        elif not future.done():
            self.prefer([name])
        return future.result()

    @override
    def __contains__(self, name: object) -> bool:
        """Return whether there is such an executable, without waiting for it."""
        return name in self._futures

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._futures)

    @override
    def __len__(self) -> int:
        return len(self._futures)

    def is_usable(self, name: str) -> bool:
        """Return whether a lookup returns at once, or as soon as it has made the executable itself."""
        future = self._futures[name]
        return self._making.lookups_make or (future.done() and future.exception() is None)

    @property
    def is_done(self) -> bool:
        """Whether all have been made, or have failed."""
        return self._num_ended == len(self._futures)

    def prefer(self, names: Sequence[str]) -> None:
        """Make these before all others that have not begun, in the order given."""
        with self._lock:
            waiting = [name for name in names if name in self._queue or name in self._rest]
            self._rest = [name for name in self._rest if name not in waiting]
            self._queue = waiting + [name for name in self._queue if name not in waiting]
        self._start_threads(1)

    def make_rest(self) -> None:
        """Begin to make all that has not begun; may be called again."""
        with self._lock:
            self._queue += self._rest
            self._rest = []
        self._start_threads(self._making.num_rest_threads)

    def wait(self) -> None:
        """Make the rest and wait for all.

        Raises:
            Exception: making one of them failed; the others have been made.
        """
        self.make_rest()
        errors = [error for future in self._futures.values() if (error := future.exception()) is not None]
        if errors:
            raise errors[0]

    def _start_threads(self, num_threads: int) -> None:
        with self._lock:
            num_missing = min(num_threads, len(self._queue)) - self._num_threads
            self._num_threads += max(num_missing, 0)
        for _ in range(num_missing):
            _start_thread(self._work, self._making.stack_bytes)

    def _work(self) -> None:
        is_announced = False
        while (name := self._next()) is not None:
            if not is_announced and name not in self._first:
                self._making.on_rest_thread()
                is_announced = True
            self._make(name)

    def _next(self) -> str | None:
        with self._lock:
            if self._queue:
                return self._queue.pop(0)
            self._num_threads -= 1
            return None

    def _claim(self, name: str) -> bool:
        """Take one whose making has not begun out of the queue; return whether it was there."""
        with self._lock:
            for names in (self._queue, self._rest):
                if name in names:
                    names.remove(name)
                    return True
        return False

    def _make(self, name: str) -> None:
        try:
            self._futures[name].set_result(self._making.make(name))
        except BaseException as error:
            self._futures[name].set_exception(error)
        with self._lock:
            self._num_ended += 1
            self.num_made += self._futures[name].exception() is None


_stack_lock = threading.Lock()


def _start_thread(work: Callable[[], None], stack_bytes: int) -> None:
    """Start a thread with a stack of its own size; the size is a setting of the process for threads yet to start."""
    with _stack_lock:
        previous = threading.stack_size(stack_bytes)
        try:
            threading.Thread(target=work, name="executables", daemon=True).start()
        finally:
            threading.stack_size(previous)
