"""Thread priorities for background work, so that it does not slow down steps."""

import contextlib
import os
import threading

# The kernel prefers the threads of a step. So there are as many compile threads as processors, which use all of them
# while no request runs.
# Source: setpriority(2): on Linux, niceness is a property of the thread.
COMPILE_NICENESS = 15
# Long prompts are tokenized in a tenth of busy processors.
# Source: Linux, kernel/sched/core.c, sched_prio_to_weight: 110 at niceness 10, 335 at 5, 1024 at 0.
LONG_TEXT_NICENESS = 10
# Requests wait for the weights of another model, so loading them gets a quarter of busy processors.
LOAD_NICENESS = 5


def yield_to_steps(niceness: int = COMPILE_NICENESS) -> None:
    """Lower the priority of this thread and the threads that it starts below that of threads that run steps."""
    with contextlib.suppress(OSError, AttributeError):  # not every system supports niceness per thread
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
