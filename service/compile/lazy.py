"""Executables that load in the background, in the order given; a lookup waits for the one it needs."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import override

from service.compile.program import Executable


class LazyExecutables(Mapping[str, Executable]):
    """A mapping from names to executables whose values may still be loading."""

    def __init__(
        self,
        names: Sequence[str],
        load: Callable[[str], Executable],
        *,
        num_first: int,
        num_first_threads: int,
        num_threads: int,
    ) -> None:
        """Begin to load the first ones.

        Args:
            names: of all executables, in the order in which they are needed.
            load: loads one; called on any thread.
            num_first: how many of them to load now; the others are loaded by `load_rest`, or when they are looked up.
            num_first_threads: how many of the first are loaded at once.
            num_threads: how many of the others.
        """
        self._load = load
        self._lock = threading.Lock()
        self._num_threads = num_threads
        # A future that is not submitted yet is pending, like one that waits in the pool; a lookup takes over either.
        self._futures: dict[str, Future[Executable]] = {name: Future() for name in names}
        self._rest = list(names[num_first:])
        self._submit(names[:num_first], num_first_threads)

    @override
    def __getitem__(self, name: str) -> Executable:
        """Return an executable; one whose loading has not begun is loaded on this thread.

        Raises:
            Exception: loading it failed.
        """
        with self._lock:
            future = self._futures[name]
            is_ours = future.cancel()  # False for one that is loading or loaded
            if is_ours:
                future = self._futures[name] = Future()
                future.set_running_or_notify_cancel()  # from here on no other lookup can take it over
        if is_ours:
            try:
                future.set_result(self._load(name))
            except BaseException as error:
                future.set_exception(error)
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

    def load_rest(self) -> None:
        """Begin to load all that were not looked up yet; may be called again."""
        with self._lock:
            rest, self._rest = self._rest, []
            left = [name for name in rest if not (self._futures[name].running() or self._futures[name].done())]
            self._submit(left, self._num_threads)

    def wait(self) -> None:
        """Load the rest and wait for all.

        Raises:
            Exception: loading one of them failed.
        """
        self.load_rest()
        for name in self._futures:
            self[name]

    def _submit(self, names: Sequence[str], num_threads: int) -> None:
        pool = ThreadPoolExecutor(num_threads, thread_name_prefix="executables")
        self._futures |= {name: pool.submit(self._load, name) for name in names}
        pool.shutdown(wait=False)  # its threads end after the last of these
