"""The time by which stored objects expire. A clock that jumps ahead must not delete what is still to be kept."""

import time

# Between the end of an object's time and its deletion: the clock of the process that wrote it may have been so far
# behind, or that of the process that deletes it be ahead.
CLOCK_JUMP_S = 3600.0
# The Unix time less that of a clock that never jumps.
STARTED_S = time.time() - time.monotonic()


def expiry_time() -> float:
    """Return the Unix time in seconds, less what the clock has jumped ahead since this process started."""
    return min(time.time(), STARTED_S + time.monotonic())
