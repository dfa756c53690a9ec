"""Counts of this process's traces and compilations; both stay constant once the service is ready."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# All of jax, not `jax.monitoring` alone: other threads of a start import jax concurrently, and importing a submodule of
# a package that another thread is importing can deadlock: each thread waits for the other's import lock.
import jax

# Source: jax/_src/dispatch.py, the names of the events that each tracing and each backend compilation records.
TRACE_EVENT = "/jax/core/compile/jaxpr_trace_duration"
COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"

_thread = threading.local()


@contextmanager
def planned_compilation() -> Iterator[None]:
    """Mark what this thread compiles as planned: a program, not a computation that turns out to need compiling."""
    _thread.is_planned = True
    try:
        yield
    finally:
        _thread.is_planned = False


class CompileCounter:
    """Counts from its construction on; `on_compile` is told of each compilation whether it was planned."""

    def __init__(self, on_compile: Callable[[bool], None] = lambda is_planned: None) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._on_compile = on_compile
        jax.monitoring.register_event_duration_secs_listener(self._count)

    @property
    def num_traces(self) -> int:
        """Functions traced since the counter was made."""
        return self._counts[TRACE_EVENT]

    @property
    def num_compiles(self) -> int:
        """XLA compilations since the counter was made."""
        return self._counts[COMPILE_EVENT]

    def close(self) -> None:
        """Stop counting."""
        jax.monitoring.unregister_event_duration_listener(self._count)

    def _count(self, event: str, duration_secs: float, **labels: str | int) -> None:
        if event not in (TRACE_EVENT, COMPILE_EVENT):
            return
        with self._lock:
            self._counts[event] += 1
        if event == COMPILE_EVENT:
            self._on_compile(getattr(_thread, "is_planned", False))
