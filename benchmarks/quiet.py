"""Measurements that are undisturbed by other processes on a shared machine.

Before a measurement, wait for a second in which other processes are idle. Afterwards, compute the CPU time that other
processes used during it, and repeat the measurement if that was too much.
"""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import psutil

MAX_DISTURBANCE = 0.15  # cores that other processes may use during a measurement
MAX_ATTEMPTS = 3
SAMPLE_S = 1.0
BUSY = ("user", "nice", "system", "irq", "softirq")  # the last two exist on Linux only


@dataclass(frozen=True)
class Quiet:
    """A stopwatch that knows the processes of this benchmark."""

    pids: tuple[int, ...]
    patience_s: float  # seconds to wait for a quiet second, each time
    max_attempts: int = MAX_ATTEMPTS

    def measure[T](self, task: Callable[[], T]) -> tuple[T, float]:
        """Repeat a measurement until it is undisturbed, or return the least disturbed of a few.

        Returns:
            Its result, and the cores that other processes used during it.
        """
        found: list[tuple[float, T]] = []
        for _ in range(self.max_attempts):
            self._wait()
            before, started = self._others_s(), time.perf_counter()
            result = task()
            disturbance = (self._others_s() - before) / (time.perf_counter() - started)
            found.append((disturbance, result))
            if disturbance <= MAX_DISTURBANCE:
                break
        disturbance, result = min(found, key=lambda entry: entry[0])
        return result, round(max(disturbance, 0.0), 3)

    def _wait(self) -> None:
        give_up_at = time.monotonic() + self.patience_s
        while time.monotonic() < give_up_at:
            before = self._others_s()
            time.sleep(SAMPLE_S)
            if (self._others_s() - before) / SAMPLE_S <= MAX_DISTURBANCE:
                return

    def _others_s(self) -> float:
        """Return the CPU seconds of all other processes since the machine booted."""
        times = psutil.cpu_times()
        busy_s = sum(getattr(times, name, 0.0) for name in BUSY)
        return busy_s - sum(_cpu_s(pid) for pid in (os.getpid(), *self.pids))


def _cpu_s(pid: int) -> float:
    """Return the CPU seconds of a process and of its children that have exited; 0 if there is no such process."""
    with suppress(psutil.NoSuchProcess):
        times = psutil.Process(pid).cpu_times()
        return times.user + times.system + times.children_user + times.children_system
    return 0.0
