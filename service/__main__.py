"""The entry point of `levserve` and of `python -m service`."""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from service.start.imports import begin_quick_imports


def main() -> NoReturn:
    """Run the command line."""
    # The first process of a container has no default for SIGTERM: what it does not handle does not reach it.
    signal.signal(signal.SIGTERM, _end)
    begin_quick_imports()
    from service.cli import main as run

    run()


def _end(sig: int, frame: FrameType | None) -> NoReturn:
    """End at once: what a command leaves on disk is complete, or ignored by the next run. Serving has a drain later."""
    os._exit(0 if sys.argv[1:2] == ["serve"] else 128 + sig)


if __name__ == "__main__":
    main()
