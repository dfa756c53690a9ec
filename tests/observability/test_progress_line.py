"""Progress is one rewritten line on a terminal, and log records elsewhere."""

import io
import threading

import pytest

from service.observability.progress_line import CLEAR_LINE, progress_line

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


def test_nothing_is_shown_after_the_body_has_failed(monkeypatch: pytest.MonkeyPatch):
    terminal, line = Terminal(), Counted()
    monkeypatch.setattr("sys.stdout", terminal)
    with pytest.raises(RuntimeError), progress_line(line, refuse, log_interval_s=0.01):
        raise RuntimeError
    assert terminal.getvalue().endswith(CLEAR_LINE)
    assert "progress" not in {thread.name for thread in threading.enumerate()}
