"""A reader of the log that stops: nothing waits for it, and what is missing later is said."""

import io
import json
import logging
import os
import subprocess
import sys
import threading

import pytest

from service.observability.background import BackgroundLog
from service.observability.logs import CloudJsonFormatter, Origin
from service.observability.trace_context import TraceContext, current_trace

PATIENCE_S = 20
PIPE_BYTES = 2**16  # of Linux, by default
ROOM = 100_000


def record_of(message, *args, **facts):
    return logging.getLogger("x").makeRecord("x", logging.INFO, __file__, 1, message, args, None, extra=facts)


class Pipe:
    """A log whose lines go into a pipe, which nobody reads before `rest`."""

    def __init__(self):
        self._read, write = os.pipe()
        self._stream = os.fdopen(write, "w")
        self.handler = BackgroundLog(self._stream, max_waiting_chars=ROOM)
        self.handler.setFormatter(CloudJsonFormatter(Origin()))
        self._lines = []
        self._reader = threading.Thread(target=self._read_all)

    def log(self, message, *args, **facts):
        self.handler.handle(record_of(message, *args, **facts))

    def _read_all(self):
        with os.fdopen(self._read) as lines:
            self._lines += map(json.loads, lines)

    def rest(self):
        """Read all lines; those that wait are written first."""
        self._reader.start()
        while not self.handler.write_out(PATIENCE_S):
            pass
        self._stream.close()
        self._reader.join()
        return self._lines


@pytest.fixture
def pipe():
    return Pipe()


def test_every_line_is_written_in_order(pipe):
    for i in range(50):
        pipe.log("line", number=i)
    assert [line["number"] for line in pipe.rest()] == list(range(50))


def test_a_line_has_the_trace_of_the_request_that_logged_it(pipe):
    token = current_trace.set(TraceContext("a" * 32, None, True))
    pipe.log("inside")
    current_trace.reset(token)
    inside, outside = (pipe.log("outside"), pipe.rest())[1]
    assert inside["logging.googleapis.com/trace"] == "a" * 32
    assert "logging.googleapis.com/trace" not in outside


@pytest.mark.timeout(60)
def test_nothing_waits_for_a_reader_that_stops_and_what_is_missing_is_counted(pipe):
    num_logged = 2 * (PIPE_BYTES + ROOM) // 100
    for i in range(num_logged):
        pipe.log("x" * 100, number=i)
    assert not pipe.handler.write_out(0.05)
    lines = pipe.rest()
    told = [line["dropped_log_lines"] for line in lines if "dropped_log_lines" in line]
    numbers = [line["number"] for line in lines if "number" in line]
    assert numbers == sorted(numbers)
    assert numbers[0] == 0
    assert 0 < len(numbers) < num_logged
    assert len(numbers) + sum(told) == num_logged
    assert all(line["severity"] == "WARNING" for line in lines if "dropped_log_lines" in line)


class FullDisk(io.StringIO):
    """A stream that takes nothing until there is room."""

    has_room = False

    def write(self, text):
        if not self.has_room:
            raise OSError(28, "No space left on device")
        return super().write(text)


def test_lines_for_which_the_disk_had_no_room_are_counted_once_there_is_some():
    stream = FullDisk()
    handler = BackgroundLog(stream)
    handler.setFormatter(CloudJsonFormatter(Origin()))
    for _ in range(3):
        handler.handle(record_of("lost"))
    assert handler.write_out(PATIENCE_S)
    stream.has_room = True
    handler.handle(record_of("kept"))
    assert handler.write_out(PATIENCE_S)
    kept, told = map(json.loads, stream.getvalue().splitlines())
    assert (kept["message"], told["dropped_log_lines"]) == ("kept", 3)


def test_a_record_that_cannot_be_formatted_is_named_by_its_place(pipe, capsys):
    pipe.log("%d", "secret")
    [line] = pipe.rest()
    assert (line["message"], line["format"], line["error"]) == ("a log line cannot be formatted", "%d", "TypeError")
    assert line["logging.googleapis.com/sourceLocation"]["file"] == __file__
    assert "secret" not in str(line) + "".join(capsys.readouterr())


NOISY = """
import threading, time, warnings
from service.observability.background import log_in_background, write_out_log
from service.observability.logs import configure_logging

class Broken:
    def __del__(self):
        raise ValueError("unraisable " + "b" * 200)

class Unprintable:
    def __str__(self):
        raise ValueError("unprintable " + "u" * 200)

def fail():
    raise ValueError("thread " + "t" * 200)

configure_logging("INFO", "json")
log_in_background()
for i in range(400):
    warnings.warn_explicit(f"warning {i} " + "w" * 200, UserWarning, "here.py", i + 1)
    Broken()
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
import logging
logging.getLogger("a").info("%s", Unprintable())
assert write_out_log(20)
"""


def test_nothing_waits_for_a_reader_of_stderr_and_what_python_reports_is_in_the_log(tmp_path):
    log = tmp_path / "log"
    with log.open("w") as stdout:
        process = subprocess.Popen([sys.executable, "-c", NOISY], stdout=stdout, stderr=subprocess.PIPE, text=True)
        try:
            assert process.wait(PATIENCE_S) == 0  # nobody has read stderr
            assert process.stderr.read() == ""
        finally:
            process.kill()
            process.stderr.close()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    traces = "".join(line.get("stack_trace", "") for line in lines)
    assert sum("warning 399" in line["message"] for line in lines) == 1
    assert (traces.count("ValueError: thread"), traces.count("ValueError: unraisable")) == (400, 400)
    assert sum(line["message"] == "a log line cannot be formatted" for line in lines) == 1
