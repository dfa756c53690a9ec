"""The creation time of this process according to the kernel, which precedes the start of Python."""

import os
import time
from pathlib import Path

# A larger age means that the kernel's clock does not match this process, as in some sandboxes.
MAX_AGE_S = 3600.0


def process_began_s() -> float:
    """Return when this process was created, on the clock of `time.monotonic`; the current time if unknown.

    Source: proc(5), /proc/pid/stat, field 22: ticks after boot.
    """
    now_s = time.monotonic()
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        began_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - began_s
    except (OSError, ValueError, IndexError, AttributeError):
        return now_s
    return now_s - age_s if 0 <= age_s < MAX_AGE_S else now_s
