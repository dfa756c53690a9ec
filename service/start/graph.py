"""Parts of a start that run at the same time, each on a thread of its own, and wait for one another by name."""

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from typing import Any


class StartParts:
    """The parts under way. Their threads are daemons: a failed start ends while one is deep in a compilation."""

    def __init__(self) -> None:
        self._futures: list[Future[Any]] = []

    def begin[T](self, name: str, part: Callable[[], T]) -> Future[T]:
        """Run a part; another part waits for it by asking the future for its result."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(part())
            except BaseException as error:
                future.set_exception(error)

        self._futures.append(future)
        threading.Thread(target=run, name=name, daemon=True).start()
        return future

    def wait_for(self, *needed: Future[Any]) -> None:
        """Wait for some parts.

        Raises:
            BaseException: the first failure of any part, at once, whatever the others still do.
        """
        left = set(needed)
        while left:
            done, left = wait(left, return_when=FIRST_EXCEPTION)
            for future in [*self._futures, *done]:  # in the order of their begin: a cause before its consequences
                if future.done():
                    future.result()
