"""The share of the processors that other work takes while requests are answered."""

import contextlib
import os
import threading

# The kernel gives the threads of a step the processors first. So as many threads compile as there are processors, which
# are all theirs while no request runs.
# Source: setpriority(2): on Linux, niceness is a property of the thread.
COMPILE_NICENESS = 15
# Long prompts are tokenized in a tenth of busy processors.
# Source: Linux, kernel/sched/core.c, sched_prio_to_weight: 110 at niceness 10, 335 at 5, 1024 at 0.
LONG_TEXT_NICENESS = 10
# The weights of one more model are waited for by requests, so they get a part of busy processors: a quarter.
LOAD_NICENESS = 5


def yield_to_steps(niceness: int = COMPILE_NICENESS) -> None:
    """Lower the priority of this thread, and of those that it starts, below that of the threads that run steps."""
    with contextlib.suppress(OSError, AttributeError):  # not every system knows the niceness of a thread
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), niceness)
