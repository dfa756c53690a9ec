"""A watchdog for the device: a hung step cannot be interrupted, so the process is terminated.

It runs on a thread, so that neither the event loop nor the device thread can block it.
"""

import logging
import os
import threading
import time
from collections.abc import Callable

from service.observability.background import write_out_log

logger = logging.getLogger(__name__)

CHECKS_PER_LIMIT = 20
MAX_INTERVAL_S = 1.0
# Time for final responses to clients and for an orderly exit, which a hung device may prevent.
GRACE_S = 1.5
# The part of it for the last log lines.
LAST_LINES_S = 0.1
EXIT_CODE = 1


def watch(step_wait_s: Callable[[], float], limit_s: float, on_hang: Callable[[], None]) -> None:
    """Start the watchdog.

    Args:
        step_wait_s: returns how long the current step has been running, in seconds; 0 if there is none.
        limit_s: WATCHDOG_SECONDS.
        on_hang: called from the watchdog's thread; the process ends soon afterwards.
    """

    def look() -> None:
        while (waited_s := step_wait_s()) < limit_s:
            time.sleep(min(MAX_INTERVAL_S, limit_s / CHECKS_PER_LIMIT))
        logger.critical(
            "A device step has hung, so this process terminates.",
            extra={"waited_s": round(waited_s, 1), "watchdog_seconds": limit_s},
        )
        end_after(GRACE_S, EXIT_CODE)
        on_hang()

    threading.Thread(target=look, name="watchdog", daemon=True).start()


def end_after(seconds: float, code: int) -> None:
    """Terminate the process after a delay, even if its orderly exit hangs."""

    def end() -> None:
        write_out_log(LAST_LINES_S)
        os._exit(code)

    timer = threading.Timer(seconds - LAST_LINES_S, end)
    timer.daemon = True
    timer.start()
