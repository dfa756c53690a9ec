"""How a pull shows itself: one line on a terminal, log lines elsewhere."""

import io
import logging
import re
import time
from collections.abc import Callable

import pytest

from service.storage import progress as progress_module
from service.storage.progress import Progress, render, shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def open_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Terminal]:
    """Make stdout a terminal; called within the test, since pytest sets stdout anew when that begins."""

    def open_one() -> Terminal:
        terminal = Terminal()
        monkeypatch.setattr("sys.stdout", terminal)
        return terminal

    return open_one


def test_the_line_says_how_far_how_fast_and_how_long():
    progress = Progress()
    progress.expect(2_000_000)
    progress.add(500_000)
    time.sleep(0.01)
    pattern = r"gs://b/m   25 %  500\.0 KB of 2\.0 MB  \d+\.\d [MGK]B/s  0:00 left"
    assert re.fullmatch(pattern, render(progress, "gs://b/m"))


def test_nothing_yet_is_no_division_by_zero():
    assert render(Progress(), "x") == "x  100 %  0 B of 0 B  0 B/s  waiting"


def test_a_terminal_gets_one_line_that_is_wiped_in_the_end(open_terminal: Callable[[], Terminal]):
    progress, terminal = Progress(), open_terminal()
    with shown(progress, "gs://b/m"):
        progress.expect(10)
        time.sleep(0.3)
    assert "0 %" in terminal.getvalue()
    assert "\n" not in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\x1b[2K")


def test_elsewhere_the_facts_go_to_the_log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress_module, "LOG_INTERVAL_S", 0.02)
    progress = Progress()
    progress.expect(10)
    progress.add(4)
    with caplog.at_level(logging.INFO), shown(progress, "gs://b/m"):
        time.sleep(0.1)
    record = caplog.records[0]
    assert (record.bytes_done, record.bytes_total) == (4, 10)
    assert record.bytes_per_second > 0


def test_a_pull_that_fails_stops_showing(open_terminal: Callable[[], Terminal]):
    terminal = open_terminal()
    with pytest.raises(RuntimeError), shown(Progress(), "x"):
        raise RuntimeError
    length = len(terminal.getvalue())
    time.sleep(0.3)
    assert len(terminal.getvalue()) == length
