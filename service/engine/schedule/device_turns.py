"""Fair time-sharing of devices between engines; a single engine with work takes no turns.

Start-time fair queueing: among the engines with work, the one that has used the devices least runs next, so a small
model's short steps do not wait behind as many long ones. An engine that becomes busy starts at the least usage of the
busy ones.
Source: Goyal, Vin, Cheng, 1996, https://dl.acm.org/doi/10.1145/248157.248171
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# How long a free device waits for an engine that comes first and is still delivering its last step.
PATIENCE_S = 0.005


class DeviceTurns:
    """The engines of a process whose steps share devices; thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._working: set[EngineTurns] = set()
        self._is_taken = False
        self._free_since_s = 0.0

    def join(self) -> "EngineTurns":
        """Add an engine, which has no work yet."""
        return EngineTurns(self)

    @property
    def is_contended(self) -> bool:
        """Whether several engines have work."""
        return len(self._working) > 1

    def begin(self, engine: "EngineTurns") -> None:
        """Count an engine among the busy ones."""
        with self._changed:
            if engine not in self._working:
                engine.used_s = max(engine.used_s, min((other.used_s for other in self._working), default=0.0))
                self._working.add(engine)

    def end(self, engine: "EngineTurns") -> None:
        """Count an engine among the idle ones."""
        with self._changed:
            self._working.discard(engine)
            self._changed.notify_all()

    def take(self, engine: "EngineTurns") -> float:
        """Wait for an engine's turn, and return its start time."""
        with self._changed:
            engine.is_waiting = True
            while (wait_s := self._wait_s(engine)) != 0.0:
                self._changed.wait(wait_s)
            engine.is_waiting, self._is_taken = False, True
            return self._clock()

    def give_back(self, engine: "EngineTurns", begin_s: float) -> None:
        """End an engine's turn and add its duration to the engine's usage."""
        with self._changed:
            self._free_since_s = self._clock()
            engine.used_s += self._free_since_s - begin_s
            self._is_taken = False
            self._changed.notify_all()

    def _wait_s(self, engine: "EngineTurns") -> float | None:
        """Return how long an engine must still wait; None to wait for a change."""
        if self._is_taken:
            return None
        ahead = [other for other in self._working if other is not engine and other.used_s < engine.used_s]
        if any(other.is_waiting for other in ahead):
            return None
        return max(0.0, self._free_since_s + PATIENCE_S - self._clock()) if ahead else 0.0


class EngineTurns:
    """One engine's part in the turns; all of it belongs to the engine's device thread."""

    def __init__(self, turns: DeviceTurns) -> None:
        self.used_s = 0.0  # of the devices, while they were contended
        self.is_waiting = False
        self._turns = turns

    @property
    def is_contended(self) -> bool:
        """Whether other engines have work too, so that a step needs a turn."""
        return self._turns.is_contended

    def begin_work(self) -> None:
        """Count this engine among the busy ones."""
        self._turns.begin(self)

    def end_work(self) -> None:
        """Count this engine among the idle ones, for which no other waits."""
        self._turns.end(self)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for a turn, in which the body runs one step to its end."""
        begin_s = self._turns.take(self)
        try:
            yield
        finally:
            self._turns.give_back(self, begin_s)
