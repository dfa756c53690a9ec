"""Measurements that nobody else's work has spoilt, on a machine that may not be ours alone.

Before a measurement it waits for a quiet second; after it, it knows how much processor time others took meanwhile, and
measures again if that was too much. Linux only; elsewhere nothing is known and everything counts as quiet.
"""

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

MAX_DISTURBANCE = 0.15  # cores that others may use meanwhile
MAX_ATTEMPTS = 3
SAMPLE_S = 1.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
BUSY_FIELDS = (0, 1, 2, 5, 6)  # of /proc/stat's first line: user, nice, system, irq, softirq


@dataclass(frozen=True)
class Quiet:
    """Knows which processes are ours."""

    pids: tuple[int, ...]
    patience_s: float  # how long to wait for a quiet second, each time

    def measure[T](self, task: Callable[[], T]) -> tuple[T, float]:
        """Run a measurement until it was undisturbed, or the least disturbed of a few.

        Returns:
            What it returned, and the cores that others used meanwhile.
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
        """Return the processor seconds that everybody but us has used since the machine started."""
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
            # user and system time, the process's own and that of its children that have ended
            total += sum(map(int, path.read_text().rsplit(")", 1)[1].split()[11:15]))
    return total
