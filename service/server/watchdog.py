"""The watch over the device: a step that does not come back cannot be interrupted, so it ends the process.

A thread, so that neither the event loop nor the device thread can stop it.
"""

import logging
import os
import threading
import time
from collections.abc import Callable

from service.observability.background import write_out_log

logger = logging.getLogger(__name__)

LOOKS_PER_LIMIT = 20
MAX_INTERVAL_S = 1.0
# Time for the last words to clients and for an orderly end, which a hung device may prevent.
LAST_WORDS_S = 1.5
# Of that, the time for the last log lines.
LAST_LINES_S = 0.1
EXIT_CODE = 1


def watch(step_wait_s: Callable[[], float], limit_s: float, on_hang: Callable[[], None]) -> None:
    """Start the watch.

    Args:
        step_wait_s: returns for how long a step has not come back, in seconds; 0 if none is awaited.
        limit_s: WATCHDOG_SECONDS.
        on_hang: called from the thread of the watch; the process ends soon after.
    """

    def look() -> None:
        while (waited_s := step_wait_s()) < limit_s:
            time.sleep(min(MAX_INTERVAL_S, limit_s / LOOKS_PER_LIMIT))
        logger.critical(
            "A step of the device does not come back, so this process ends.",
            extra={"waited_s": round(waited_s, 1), "watchdog_seconds": limit_s},
        )
        end_after(LAST_WORDS_S, EXIT_CODE)
        on_hang()

    threading.Thread(target=look, name="watchdog", daemon=True).start()


def end_after(seconds: float, code: int) -> None:
    """End the process after so many seconds, even if its orderly end hangs."""

    def end() -> None:
        write_out_log(LAST_LINES_S)
        os._exit(code)

    timer = threading.Timer(seconds - LAST_LINES_S, end)
    timer.daemon = True
    timer.start()
