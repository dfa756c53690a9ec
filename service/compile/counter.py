"""Counters of this process's traces and compilations, which stay constant once the service is ready."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# All of jax rather than `jax.monitoring`: other threads of a start import jax concurrently, and importing a submodule
# while another thread imports its package can deadlock on import locks.
import jax

# Source: jax/_src/dispatch.py (event names)
TRACE_EVENT = "/jax/core/compile/jaxpr_trace_duration"
COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"

_thread = threading.local()


@contextmanager
def planned_compilation() -> Iterator[None]:
    """Mark compilations on this thread as planned, as opposed to a computation that unexpectedly needs compiling."""
    _thread.is_planned = True
    try:
        yield
    finally:
        _thread.is_planned = False


class CompileCounter:
    """Counts traces and compilations from now on; `on_compile` is called with whether each compilation was planned."""

    def __init__(self, on_compile: Callable[[bool], None] = lambda is_planned: None) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._on_compile = on_compile
        jax.monitoring.register_event_duration_secs_listener(self._count)

    @property
    def num_traces(self) -> int:
        """Functions traced since the counter was created."""
        return self._counts[TRACE_EVENT]

    @property
    def num_compiles(self) -> int:
        """XLA compilations since the counter was created."""
        return self._counts[COMPILE_EVENT]

    def close(self) -> None:
        jax.monitoring.unregister_event_duration_listener(self._count)

    def _count(self, event: str, duration_secs: float, **labels: str | int) -> None:
        if event not in (TRACE_EVENT, COMPILE_EVENT):
            return
        with self._lock:
            self._counts[event] += 1
        if event == COMPILE_EVENT:
            self._on_compile(getattr(_thread, "is_planned", False))
