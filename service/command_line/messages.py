"""Lines of a command outside its log: notes before it begins, and the error that ends it.

They are text on stderr, and lines of the log where that is JSON for a platform.
"""

import logging
import sys
import traceback

from service.errors import ServiceError
from service.observability.progress import CLEAR_LINE

logger = logging.getLogger(__name__)


class Messages:
    """Writes the lines of one command."""

    def __init__(self, command: str, *, is_json: bool) -> None:
        self._command = command
        self.is_json = is_json

    def note(self, text: str) -> None:
        """Write what a user should read though nothing is wrong."""
        if self.is_json:
            logger.info("%s", text)
        else:
            self._write(text)

    def error(self, error: Exception, *, with_trace: bool) -> None:
        """Write why the command ends: cause and remedy, and a trace of what should not happen."""
        is_known = isinstance(error, ServiceError)
        if self.is_json:
            if is_known:
                logger.error("%s", error, exc_info=error if with_trace else None)
            else:
                logger.critical("an error that should not happen; please report it", exc_info=error)
            return
        if with_trace or not is_known:
            self._write("".join(traceback.format_exception(error)).rstrip())
        self._write(f"error: {error}" if is_known else "an error that should not happen; please report it")

    def _write(self, text: str) -> None:
        clear = CLEAR_LINE if sys.stderr.isatty() else ""
        print(f"{clear}levserve {self._command}: {text}", file=sys.stderr, flush=True)
