"""Progress is one rewritten line on a terminal, and log records elsewhere; a transfer's tells bytes and rate."""

import io
import logging
import re
import threading

import pytest

from service.observability import progress as progress_module
from service.observability.progress import CLEAR_LINE, Progress, progress_line, render, show_progress

TIMEOUT_S = 30


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Counted:
    """A callback that counts its calls and lets a test wait for them."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.called_twice = threading.Event()

    def __call__(self) -> str:
        self.num_calls += 1
        if self.num_calls == 2:
            self.called_twice.set()
        return f"call {self.num_calls}"


def refuse() -> str:
    raise AssertionError("not called")


def test_a_terminal_gets_one_line_that_is_erased_at_the_end(monkeypatch: pytest.MonkeyPatch):
    terminal, line = Terminal(), Counted()
    monkeypatch.setattr("sys.stdout", terminal)
    with progress_line(line, refuse, log_interval_s=0.01):
        assert line.called_twice.wait(TIMEOUT_S)
    assert terminal.getvalue().startswith(f"{CLEAR_LINE}call 1{CLEAR_LINE}call 2")
    assert "\n" not in terminal.getvalue()
    assert terminal.getvalue().endswith(CLEAR_LINE)


def test_a_terminal_can_keep_the_last_line(monkeypatch: pytest.MonkeyPatch):
    terminal, line = Terminal(), Counted()
    monkeypatch.setattr("sys.stdout", terminal)
    with progress_line(line, refuse, log_interval_s=0.01, keeps_last_line=True):
        pass
    assert terminal.getvalue() == f"{CLEAR_LINE}call 1\n"


def test_elsewhere_the_log_is_written_and_the_stream_is_not(monkeypatch: pytest.MonkeyPatch):
    stream, log = io.StringIO(), Counted()
    monkeypatch.setattr("sys.stdout", stream)
    with progress_line(refuse, log, log_interval_s=0.001):
        assert log.called_twice.wait(TIMEOUT_S)
    assert not stream.getvalue()


def test_a_terminal_shows_one_line_at_a_time(monkeypatch: pytest.MonkeyPatch):
    terminal, line = Terminal(), Counted()
    monkeypatch.setattr("sys.stdout", terminal)
    with progress_line(line, refuse, log_interval_s=0.01):
        with progress_line(refuse, refuse, log_interval_s=0.01, keeps_last_line=True):
            assert line.called_twice.wait(TIMEOUT_S)
        assert "\n" not in terminal.getvalue()
    with progress_line(line, refuse, log_interval_s=0.01, keeps_last_line=True):
        pass
    assert terminal.getvalue().endswith("\n")


def test_nothing_is_shown_after_the_body_has_failed(monkeypatch: pytest.MonkeyPatch):
    terminal, line = Terminal(), Counted()
    monkeypatch.setattr("sys.stdout", terminal)
    with pytest.raises(RuntimeError), progress_line(line, refuse, log_interval_s=0.01):
        raise RuntimeError
    assert terminal.getvalue().endswith(CLEAR_LINE)
    assert "progress" not in {thread.name for thread in threading.enumerate()}


def test_the_line_has_percentage_bytes_rate_and_time_left():
    progress = Progress()
    progress.expect(2_000_000)
    progress.add(500_000)
    pattern = r"gs://b/m   25 %  500\.0 KB of 2\.0 MB  \d+\.\d+ [MGT]B/s  0:00 left"
    assert re.fullmatch(pattern, render(progress, "gs://b/m"))


def test_no_bytes_at_all_is_not_a_division_by_zero():
    assert render(Progress(), "x") == "x  100 %  0 B of 0 B  0 B/s  waiting"


def test_the_log_has_the_byte_counts(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress_module, "LOG_INTERVAL_S", 0.02)
    progress, is_logged = Progress(), threading.Event()
    progress.expect(10)
    progress.add(4)
    caplog.handler.addFilter(lambda record: is_logged.set() or True)
    with caplog.at_level(logging.INFO), show_progress(progress, "gs://b/m"):
        assert is_logged.wait(TIMEOUT_S)
    record = caplog.records[0]
    assert (record.bytes_done, record.bytes_total) == (4, 10)
    assert record.bytes_per_second > 0


class Clock:
    def __init__(self, monkeypatch) -> None:
        self.now_s = 100.0
        monkeypatch.setattr(progress_module.time, "monotonic", lambda: self.now_s)


@pytest.mark.parametrize(
    ("total", "done", "seconds", "line"),
    [
        (0, 0, 1, "x  100 %  0 B of 0 B  0 B/s  waiting"),
        (1000, 0, 1, "x    0 %  0 B of 1.0 KB  0 B/s  waiting"),
        (1000, 999, 1, "x   99 %  999 B of 1.0 KB  999 B/s  0:00 left"),
        (1000, 1000, 1, "x  100 %  1.0 KB of 1.0 KB  1.0 KB/s  0:00 left"),
        (1_000_000, 1000, 1, "x    0 %  1.0 KB of 1.0 MB  1.0 KB/s  16:39 left"),
        (2 * 10**9, 10**9, 10, "x   50 %  1.0 GB of 2.0 GB  100.0 MB/s  0:10 left"),
        (5 * 10**12, 10**12, 100, "x   20 %  1.00 TB of 5.00 TB  10.0 GB/s  6:40 left"),
        (6_100, 100, 1, "x    1 %  100 B of 6.1 KB  100 B/s  1:00 left"),
        (36_000_000 + 100, 100, 1, "x    0 %  100 B of 36.0 MB  100 B/s  waiting"),
        (36_000_000, 100, 1, "x    0 %  100 B of 36.0 MB  100 B/s  5999:59 left"),
    ],
)
def test_the_line_of_progress_is_readable_at_every_size(monkeypatch, total, done, seconds, line):
    clock = Clock(monkeypatch)
    progress = Progress()
    progress.expect(total)
    progress.add(done)
    clock.now_s += seconds
    assert render(progress, "x") == line


def test_the_rate_counts_from_the_first_transfer(monkeypatch):
    clock = Clock(monkeypatch)
    progress = Progress()
    clock.now_s += 50
    progress.expect(100)
    clock.now_s += 10
    progress.expect(100)
    progress.add(150)
    progress.add(-50)
    assert (progress.bytes_done, progress.bytes_total, progress.bytes_per_second) == (100, 200, 10.0)


def test_a_rate_in_no_time_is_finite(monkeypatch):
    Clock(monkeypatch)
    progress = Progress()
    progress.expect(100)
    progress.add(100)
    assert progress.bytes_per_second == 100_000
