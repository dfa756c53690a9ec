"""Description of the machine that the figures come from."""

import os
import platform
import re
import shlex
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

PACKAGES = ("jax", "jaxlib", "fastapi", "uvicorn", "marin-levanter", "numpy")


def describe_machine() -> dict[str, Any]:
    """Return processor, memory, system and the versions of the main packages."""
    return {
        "processor": _processor() or platform.processor(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1024e6, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def begun(module: str) -> dict[str, Any]:
    """Return the facts with which the results of a benchmark begin: command, time, machine and its load."""
    return {
        "command": f"python -m {module} {shlex.join(sys.argv[1:])}".strip(),
        "began": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": describe_machine(),
        "load_average_before": load_average(),
    }


def load_average() -> float:
    """Return the load average of the last minute: 0 on an idle machine."""
    return round(os.getloadavg()[0], 2)


def processor_s(pid: int) -> float:
    """Return the processor seconds of a process and of its children that run."""
    process, total = psutil.Process(pid), 0.0
    for each in (process, *process.children(recursive=True)):
        times = each.cpu_times()
        total += times.user + times.system
    return total


def _processor() -> str | None:
    path = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: (.+)$", path.read_text(), re.MULTILINE) if path.exists() else []
    return names[0] if names else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
