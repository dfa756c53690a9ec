"""Description of the machine that the figures come from."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("jax", "jaxlib", "fastapi", "uvicorn", "marin-levanter", "numpy")


def describe_machine() -> dict[str, Any]:
    """Return processor, memory, system and the versions of the main packages."""
    return {
        "processor": _first("/proc/cpuinfo", "model name") or platform.processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(int((_first("/proc/meminfo", "MemTotal") or "0 kB").split()[0]) / 1e6, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def load_average() -> float:
    """Return the load average of the last minute: 0 on an idle machine."""
    return round(os.getloadavg()[0], 2)


def _first(path: str, key: str) -> str | None:
    if not Path(path).exists():
        return None
    lines = (line.partition(":") for line in Path(path).read_text().splitlines())
    return next((value.strip() for name, _, value in lines if name.strip() == key), None)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
