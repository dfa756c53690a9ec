"""A process of this folder that acts until its input ends, and then prints one JSON value: its report."""

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def reporter(module: str, port: int) -> Iterator[list[Any]]:
    """Run a module while the context is open, from when it says that it has begun; the list has its report after it."""
    reports: list[Any] = []
    command = [sys.executable, "-m", module, str(port)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        yield reports
        output, _ = process.communicate("", timeout=60)
        reports.append(json.loads(output))
    finally:
        process.kill()
        process.wait()
