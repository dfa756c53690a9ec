import io
import logging

import pytest

from service.observability.logs import configure_logging
from service.observability.progress import CLEAR_LINE


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def root_logger():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.parametrize(("stream", "before"), [(Terminal(), CLEAR_LINE), (io.StringIO(), "")])
def test_a_record_clears_the_moving_line_of_a_terminal(root_logger, stream, before):
    configure_logging("INFO", "text", stream)
    logging.getLogger("x").info("ready", extra={"seconds": 1.23456})
    assert stream.getvalue()[: len(before)] == before
    assert stream.getvalue().endswith("INFO    ready  seconds=1.23\n")
    assert stream.getvalue().count(CLEAR_LINE) == (1 if before else 0)
