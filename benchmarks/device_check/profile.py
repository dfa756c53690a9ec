"""The operations that take most of a decode step, from one profile, during which XLA uses no command buffers."""

import shutil
import sys
from collections import Counter
from pathlib import Path

import jax

from benchmarks.device_check.decode import measure
from benchmarks.device_check.report import write_part

NUM_OPERATIONS = 12
FOLDER = "profile"
OPERATION_LINES = ("XLA Ops", "Stream")  # of a TPU, of a GPU
PYTHON = "$"  # the first letter of its functions' names


def main(out: Path, *, is_tiny: bool) -> None:
    """Profile a round of steps; the profile is kept."""
    folder = out / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    context, batch = ("64", "1") if is_tiny else ("1024", "32")
    measure(out, ["--context", context, "--batches", batch, "--profile", str(folder)], is_tiny=is_tiny)
    times = operation_times(next(folder.rglob("*.xplane.pb")))
    total_ns = sum(times.values())
    write_part(
        out,
        "profile",
        [
            {"check": name, "passed": True, "ms": round(ns / 1e6, 3), "of all": round(ns / total_ns, 3)}
            for name, ns in times.most_common(NUM_OPERATIONS)
        ],
    )


def operation_times(path: Path) -> Counter[str]:
    """Return the nanoseconds of each operation on the device; on a CPU, of all that is not Python."""
    planes = list(jax.profiler.ProfileData.from_file(str(path)).planes)
    on_device = [plane for plane in planes if plane.name.startswith("/device:")]
    times: Counter[str] = Counter()
    for plane in on_device or planes:
        for line in plane.lines:
            # The other lines of a device sum these up, by program and by step.
            if on_device and not line.name.startswith(OPERATION_LINES):
                continue
            for event in line.events:
                if not event.name.startswith(PYTHON):
                    times[event.name] += int(event.duration_ns)
    return times


if __name__ == "__main__":
    main(Path(sys.argv[1]), is_tiny="--tiny" in sys.argv)
