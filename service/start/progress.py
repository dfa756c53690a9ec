"""Timing, log lines and progress of a start's phases, which `/health/ready` reports.

Times count from the creation of the process, so they include the start of the interpreter and the first imports. For a
model loaded later, they count from the start of its load.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from service.observability.metrics import Metrics
from service.observability.progress import Progress
from service.start.process_age import process_began_s

logger = logging.getLogger(__name__)

# Log progress at least this often while compiling.
LOG_INTERVAL_S = 3.0


class Phase(StrEnum):
    """A named, timed part of the start; the phases between `locate` and `warm` run concurrently."""

    IMPORT = "import"
    LOCATE = "locate"
    WEIGHTS = "weights"
    EXECUTABLES = "executables"
    TOKENIZER = "tokenizer"
    WARM = "warm"


@dataclass(frozen=True, slots=True)
class Span:
    """A phase, or a part of one."""

    phase: Phase
    part: str  # the part of the phase; empty for the whole phase
    begin_s: float  # since the process began
    end_s: float
    is_whole: bool = False  # whether it counts towards the phase's seconds; others appear only in the timeline


class StartProgress:
    """The progress of a start, written by its threads and read by the event loop."""

    def __init__(self, metrics: Metrics, began_s: float | None = None) -> None:
        """Start the clock.

        Args:
            metrics: the metrics of the process.
            began_s: when the load of an additional model began, on the clock of `time.monotonic`; None for a process.
        """
        self.pulled = Progress()
        self.details: dict[str, Any] = {}  # for /admin/stats, in addition to the phases
        self.first_token_s: float | None = None  # since the process began, like the next two
        self.answering_s: float | None = None
        self.ready_s: float | None = None
        self.obstacle: str | None = None  # why the start stays incomplete although requests are answered
        self._metrics = metrics
        self._lock = threading.Lock()
        self.began_s = process_began_s() if began_s is None else began_s  # on the clock of `time.monotonic`
        self._running: dict[tuple[Phase, str], float] = {}  # when each began
        self._spans: list[Span] = []
        self._executables = (0, 0)  # done, total
        self._executables_logged_s = 0.0  # seconds since the process began, like the next
        self._executables_since_s = 0.0
        if began_s is None:
            self.record(Phase.IMPORT, "settings and server", begin_s=0.0, is_whole=True)

    @property
    def is_answering(self) -> bool:
        """Whether a token has been generated: requests are answered, slowly while executables are missing."""
        return self.answering_s is not None

    @property
    def is_complete(self) -> bool:
        """Whether requests are answered and all executables are available."""
        return self.ready_s is not None

    @property
    def spans(self) -> list[Span]:
        """The finished spans in the order in which they ended."""
        with self._lock:
            return list(self._spans)

    def elapsed_s(self) -> float:
        """Return the age of the process, or of the model's load."""
        return time.monotonic() - self.began_s

    @contextmanager
    def phase(self, phase: Phase, part: str = "", *, begin_s: float | None = None) -> Iterator[dict[str, Any]]:
        """Time a phase or a named part of it, and log it with the fields that the body adds to the yielded dict.

        Args:
            phase: the phase.
            part: the part of the phase; empty for the whole phase.
            begin_s: seconds since the process began, for a phase that began before this block.
        """
        fields: dict[str, Any] = {}
        with self._timed(phase, part, is_whole=True, begin_s=begin_s) as done:
            yield fields
        seconds = done[0].end_s - done[0].begin_s
        self._metrics.startup_phase_seconds.labels(phase).inc(seconds)
        part_field = {"part": part} if part else {}
        extra = {"phase": str(phase), **part_field, "seconds": round(seconds, 3), **fields}
        logger.info("start: %s", phase, extra=extra)

    @contextmanager
    def part(self, phase: Phase, part: str) -> Iterator[None]:
        """Time a part of a running phase, for the timeline only."""
        with self._timed(phase, part, is_whole=False):
            yield

    def record(self, phase: Phase, part: str, *, begin_s: float, is_whole: bool = False) -> Span:
        """Record a span that ends now; `begin_s` counts from when the process began."""
        span = Span(phase, part, begin_s, self.elapsed_s(), is_whole)
        with self._lock:
            self._spans.append(span)
        return span

    def count_executables(self, done: int, total: int) -> None:
        """Update the number of executables that have been loaded or compiled."""
        now_s = self.elapsed_s()
        if done == 0:
            self._executables_since_s = self._executables_logged_s = now_s
        self._executables = (done, total)
        if now_s - self._executables_logged_s >= LOG_INTERVAL_S and done < total:
            self._executables_logged_s = now_s
            logger.info("compiling or loading", extra={"executables_done": done, "executables_total": total})

    def mark_answering(self, first_token_s: float | None) -> None:
        """Log that requests are answered from now on, although some executables may still be loading or compiling.

        Args:
            first_token_s: when the first token was generated, on the clock of `time.monotonic`.
        """
        self.answering_s = self.elapsed_s()
        if first_token_s is not None:
            self.first_token_s = first_token_s - self.began_s
        logger.info("answering", extra={"seconds": round(self.answering_s, 3)})

    def mark_incomplete(self, obstacle: str) -> None:
        """Record why the start stays incomplete; the service continues with the available executables."""
        self.obstacle = obstacle

    def mark_ready(self, **details: Any) -> None:
        """Log that the start is complete, with its details and the seconds of every phase."""
        self.ready_s = self.elapsed_s()
        self.details |= details
        phases = {f"{phase}_seconds": seconds for phase, seconds in self._done_seconds().items()}
        first = {"first_token_seconds": round(self.first_token_s, 3)} if self.first_token_s is not None else {}
        logger.info("ready", extra={"seconds": round(self.ready_s, 3), **first, **details, **phases})

    def progress(self) -> dict[str, Any]:
        """Return the progress as a JSON object."""
        now_s = self.elapsed_s()
        with self._lock:
            running = {f"{phase} {part}".strip(): now_s - begin_s for (phase, part), begin_s in self._running.items()}
        done, total = self._executables
        seconds = self.ready_s if self.ready_s is not None else now_s
        left_s = self._left_s(now_s)
        idle = Phase.EXECUTABLES if done < total else Phase.LOCATE  # no task runs while a start waits for executables
        return {
            "phase": "complete" if self.is_complete else ", ".join(running) or idle,
            "seconds": round(seconds, 3),
            "percent": None if left_s is None else int(100 * seconds / (seconds + left_s)),
            "estimated_seconds_left": None if left_s is None else round(left_s, 1),
            "phases_done_seconds": self._done_seconds(),
            "phases_running_seconds": {name: round(age_s, 3) for name, age_s in running.items()},
            "bytes_done": self.pulled.bytes_done,
            "bytes_total": self.pulled.bytes_total,
            "executables_done": done,
            "executables_total": total,
            **({} if self.obstacle is None else {"incomplete_because": self.obstacle}),
        }

    def summary(self) -> str:
        """Return the progress as a phrase, for the error of a request that arrives too early."""
        state = self.progress()
        parts = [f"{state['phase']} after {state['seconds']:.0f} s"]
        if state["bytes_total"] > 0:
            parts.append(f"{state['bytes_done']:,} of {state['bytes_total']:,} bytes pulled")
        if state["executables_total"]:
            parts.append(f"{state['executables_done']} of {state['executables_total']} executables ready")
        if state["estimated_seconds_left"]:
            parts.append(f"about {state['estimated_seconds_left']:.0f} s left")
        return ", ".join(parts)

    def report(self) -> dict[str, Any]:
        """Return the complete timeline as a JSON object."""
        spans = [{**asdict(span), "phase": str(span.phase)} for span in sorted(self.spans, key=lambda s: s.begin_s)]
        moments = {name: getattr(self, name) for name in ("first_token_s", "answering_s", "ready_s")}
        return {**moments, "spans": spans, **self.details}

    @contextmanager
    def _timed(self, phase: Phase, part: str, *, is_whole: bool, begin_s: float | None = None) -> Iterator[list[Span]]:
        """Time the body; afterwards, the yielded list contains its span."""
        begin_s = self.elapsed_s() if begin_s is None else begin_s
        done: list[Span] = []
        with self._lock:
            self._running[phase, part] = begin_s
        yield done
        with self._lock:
            del self._running[phase, part]
        done.append(self.record(phase, part, begin_s=begin_s, is_whole=is_whole))

    def _done_seconds(self) -> dict[str, float]:
        totals: dict[str, float] = {}
        for span in self.spans:
            if span.is_whole:
                totals[span.phase] = totals.get(span.phase, 0.0) + span.end_s - span.begin_s
        return {phase: round(seconds, 3) for phase, seconds in totals.items()}

    def _left_s(self, now_s: float) -> float | None:
        """Estimate the remaining seconds from the slower of bytes and executables; None before either has started."""
        if self.is_complete:
            return 0.0
        estimates = []
        if 0 < self.pulled.bytes_done < self.pulled.bytes_total:
            estimates.append((self.pulled.bytes_total - self.pulled.bytes_done) / max(self.pulled.bytes_per_second, 1))
        done, total = self._executables
        if 0 < done < total:
            estimates.append((now_s - self._executables_since_s) / done * (total - done))
        return max(estimates, default=None)
