"""A module that leaves a trace when it is imported, and a function that leaves one when it is called."""

import os
from pathlib import Path

TRACE = "LEVSERVE_TEST_CANARY"  # names the file that is written


def sing(*_: object) -> None:
    """Leave the trace."""
    Path(os.environ[TRACE]).write_text("executed")


sing()
