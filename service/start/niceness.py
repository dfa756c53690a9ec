"""The share of the processors that compiling takes while requests are answered: what their steps leave."""

import contextlib
import os
import threading

# The kernel gives the threads of a step the processors first. So as many threads compile as there are processors, which
# are all theirs while no request runs.
# Source: setpriority(2): on Linux, niceness is a property of the thread.
COMPILE_NICENESS = 15


def yield_to_steps() -> None:
    """Lower the priority of this thread below that of the threads that run steps."""
    with contextlib.suppress(OSError, AttributeError):  # not every system knows the niceness of a thread
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), COMPILE_NICENESS)
