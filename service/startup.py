"""The phases of a start: their clocks, their log lines, and the progress that `/health/ready` tells."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

from service.checkpoint.progress import Progress
from service.observability.metrics import Metrics

logger = logging.getLogger(__name__)


class Phase(StrEnum):
    """A named, timed part of the start; `weights`, `executables` and `tokenizer` run at the same time."""

    LOCATE = "locate"
    WEIGHTS = "weights"
    EXECUTABLES = "executables"
    TOKENIZER = "tokenizer"
    WARM = "warm"


class Startup:
    """How far a start is; written by the loading threads, read by the event loop."""

    def __init__(self, metrics: Metrics) -> None:
        self.pulled = Progress()
        self._metrics = metrics
        self._lock = threading.Lock()
        self._began_s = time.monotonic()
        self._running: dict[Phase, float] = {}  # when each began
        self._seconds: dict[Phase, float] = {}  # how long each took
        self._executables = (0, 0)  # compiled, in all
        self._ready_s: float | None = None

    @property
    def is_ready(self) -> bool:
        """Whether a real token has come out."""
        return self._ready_s is not None

    @contextmanager
    def phase(self, phase: Phase) -> Iterator[dict[str, Any]]:
        """Time a phase; what the body puts into the dictionary goes into the log line."""
        began_s = time.monotonic()
        facts: dict[str, Any] = {}
        with self._lock:
            self._running[phase] = began_s
        yield facts
        seconds = time.monotonic() - began_s
        with self._lock:
            del self._running[phase]
            self._seconds[phase] = seconds
        self._metrics.startup_phase_seconds.labels(phase).set(seconds)
        logger.info("start: %s", phase, extra={"phase": str(phase), "seconds": round(seconds, 3), **facts})

    def count_executables(self, done: int, total: int) -> None:
        """Tell how many executables are compiled."""
        self._executables = (done, total)

    def finish(self, **facts: Any) -> None:
        """Declare the service ready."""
        self._ready_s = time.monotonic() - self._began_s
        phases = {f"{phase}_seconds": round(seconds, 3) for phase, seconds in self._seconds.items()}
        logger.info("ready", extra={"seconds": round(self._ready_s, 3), **facts, **phases})

    def progress(self) -> dict[str, Any]:
        """Return the progress as a JSON object."""
        now_s = time.monotonic()
        with self._lock:
            running = {str(phase): round(now_s - began_s, 3) for phase, began_s in self._running.items()}
            done = {str(phase): round(seconds, 3) for phase, seconds in self._seconds.items()}
        compiled, to_compile = self._executables
        return {
            "phase": "ready" if self.is_ready else ", ".join(running) or Phase.LOCATE,
            "seconds": round(self._ready_s if self._ready_s is not None else now_s - self._began_s, 3),
            "phases_done_seconds": done,
            "phases_running_seconds": running,
            "bytes_done": self.pulled.bytes_done,
            "bytes_total": self.pulled.bytes_total,
            "executables_done": compiled,
            "executables_total": to_compile,
        }

    def summary(self) -> str:
        """Return the progress in one phrase, for the error of a request that came too early."""
        state = self.progress()
        parts = [f"{state['phase']} after {state['seconds']:.0f} s"]
        if state["bytes_total"] > 0:
            parts.append(f"{state['bytes_done']:,} of {state['bytes_total']:,} bytes pulled")
        if state["executables_total"]:
            parts.append(f"{state['executables_done']} of {state['executables_total']} executables compiled")
        return ", ".join(parts)
