"""The speed at which this machine reads memory, which LOCAL_MODEL_CACHE keeps from the first start on."""

import contextlib
import json
import math
from collections.abc import Callable
from pathlib import Path

from service.device.memory import host_memory_bytes
from service.device.read_speed import count_cores
from service.settings import Settings
from service.storage.files import atomic_write

FILE = "read_speed"
_CPU_FACTS = Path("/proc/cpuinfo")


def read_speed(settings: Settings, measure: Callable[[], float | None]) -> float | None:
    """Return the bytes a second that all cores read, as kept for this machine, or else as measured now.

    What is damaged or of another machine is measured anew, and with MODEL_STREAM, whose disk may be memory, every time.

    Args:
        settings: where it is kept.
        measure: measures it; None if it cannot.
    """
    path, machine = settings.local_model_cache.expanduser().absolute() / FILE, _machine()
    kept = None if settings.model_stream else _kept(path, machine)
    if kept is not None:
        return kept
    measured = measure()
    if measured is not None and not settings.model_stream:
        with contextlib.suppress(OSError):  # the next start measures again
            path.parent.mkdir(parents=True, exist_ok=True)
            atomic_write(path, json.dumps({"machine": machine, "bytes_per_s": measured}).encode())
    return measured


def _kept(path: Path, machine: str) -> float | None:
    """Return the speed in a file, if it is of this machine."""
    try:
        match json.loads(path.read_bytes()):
            case {"machine": str(kept_machine), "bytes_per_s": float(speed)} if (
                kept_machine == machine and 0 < speed < math.inf
            ):
                return speed
    except (OSError, ValueError):
        pass
    return None


def _machine() -> str:
    """Return what distinguishes this machine from others: its processor, the cores that may be used, and its memory."""
    try:
        names = [line.partition(":")[2].strip() for line in _CPU_FACTS.read_text().splitlines() if "model name" in line]
    except OSError:
        names = []
    return f"{names[0] if names else 'unknown'}, {count_cores()} cores, {host_memory_bytes():,} bytes"
