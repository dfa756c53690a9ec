"""Measurements that are undisturbed by other processes on a shared machine.

Before a measurement, wait for a second in which other processes are idle. Afterwards, compute the CPU time that other
processes used during it, and repeat the measurement if that was too much. On systems other than Linux, this is unknown
and every measurement counts as quiet.
"""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

MAX_DISTURBANCE = 0.15  # cores that other processes may use during a measurement
MAX_ATTEMPTS = 3
SAMPLE_S = 1.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
BUSY_FIELDS = (0, 1, 2, 5, 6)  # of /proc/stat's first line: user, nice, system, irq, softirq


@dataclass(frozen=True)
class Quiet:
    """A stopwatch that knows the processes of this benchmark."""

    pids: tuple[int, ...]
    patience_s: float  # seconds to wait for a quiet second, each time

    def measure[T](self, task: Callable[[], T]) -> tuple[T, float]:
        """Repeat a measurement until it is undisturbed, or return the least disturbed of a few.

        Returns:
            Its result, and the cores that other processes used during it.
        """
        found: list[tuple[float, T]] = []
        for _ in range(MAX_ATTEMPTS):
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
        stat = Path("/proc/stat")
        if not stat.exists():
            return 0.0
        fields = stat.read_text().split("\n", 1)[0].split()[1:]
        busy = sum(int(fields[i]) for i in BUSY_FIELDS)
        return (busy - _ticks((os.getpid(), *self.pids))) / TICKS_PER_S


def _ticks(pids: Iterable[int]) -> int:
    total = 0
    for pid in pids:
        path = Path(f"/proc/{pid}/stat")
        if path.exists():
            # user and system time of the process and of its children that have exited
            total += sum(map(int, path.read_text().rsplit(")", 1)[1].split()[11:15]))
    return total
