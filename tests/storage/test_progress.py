"""A transfer's line of progress, and its log records."""

import logging
import re
import threading

import pytest

from service.storage import progress as progress_module
from service.storage.progress import Progress, render, show_progress


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
        assert is_logged.wait(30)
    record = caplog.records[0]
    assert (record.bytes_done, record.bytes_total) == (4, 10)
    assert record.bytes_per_second > 0
