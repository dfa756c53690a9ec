"""What tests ask of processes."""

import contextlib

import psutil


def is_running(pid):
    """Return whether a process exists that has not ended, whether or not its parent has waited for it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def seconds_of(pid):
    """Return how many seconds of a processor a process has taken."""
    return sum(psutil.Process(pid).cpu_times()[:2])
