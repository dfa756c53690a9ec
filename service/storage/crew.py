"""Threads that share a queue of tasks: as many as there are processors, and more for as long as they mostly wait.

From a fast source a few threads keep all processors busy, and each more takes its buffer out of their caches; over a
network each waits for its own stream, and many streams together are what fills the line.
"""

import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

CHECK_INTERVAL_S = 0.1
# More threads come while those at work use processors for less than this share of the time.
BUSY_SHARE = 0.2


def work_off[Task](
    tasks: deque[Task], begin: Callable[[], Callable[[Task], None]], *, max_threads: int, cancel: Callable[[], None]
) -> None:
    """Do all tasks, begun in their order.

    Args:
        tasks: what there is to do.
        begin: called once by each thread; returns what does a task.
        max_threads: how many threads there may be.
        cancel: called after a failure, so that tasks under way end soon.

    Raises:
        BaseException: the first failure, when all threads have ended.
    """
    failures: list[BaseException] = []
    clocks = _Clocks()
    threads: list[threading.Thread] = []

    def work() -> None:
        try:
            with clocks.running():
                do = begin()
                while (task := _next(tasks)) is not None:
                    do(task)
        except BaseException as error:
            # The first failure is the one to tell; the rest stop at their next chunk.
            failures.append(error)
            cancel()

    def add(num_threads: int) -> None:
        for _ in range(min(num_threads, max_threads - len(threads), len(tasks))):
            threads.append(threading.Thread(target=work, name=f"pull-{len(threads)}"))
            threads[-1].start()

    try:
        add(os.cpu_count() or 1)
        looked_s, had_s = time.monotonic(), 0.0
        while alive := [thread for thread in threads if thread.is_alive()]:
            alive[0].join(CHECK_INTERVAL_S)
            passed_s = time.monotonic() - looked_s
            if passed_s < CHECK_INTERVAL_S:
                continue
            used_s = clocks.total_s()
            if used_s - had_s < BUSY_SHARE * passed_s * len(threads) and not failures:
                add(len(threads))
            looked_s, had_s = looked_s + passed_s, used_s
    except BaseException:
        cancel()
        for thread in threads:
            thread.join()
        raise
    if failures:
        raise failures[0]


class _Clocks:
    """The processor time of threads, those in the middle of a task included."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[int] = set()
        self._ended_s = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the calling thread during the body; where another's clock cannot be read it counts when it ends."""
        clock = time.pthread_getcpuclockid(threading.get_ident()) if sys.platform == "linux" else None
        with self._lock:
            if clock is not None:
                self._running.add(clock)
        try:
            yield
        finally:
            with self._lock:
                if clock is not None:
                    self._running.remove(clock)
                self._ended_s += time.thread_time()

    def total_s(self) -> float:
        """Return what all have used so far."""
        # A thread cannot end while the lock is held, and with it its clock.
        with self._lock:
            return self._ended_s + sum(map(time.clock_gettime, self._running))


def _next[Task](tasks: deque[Task]) -> Task | None:
    try:
        return tasks.popleft()
    except IndexError:
        return None
