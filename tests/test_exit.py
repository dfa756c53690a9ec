"""The end of a process while threads are at work: with its exit code, and the cause as its last line."""

import json
import subprocess
import sys

import pytest

FAIL = """
import logging, threading, time
from service import cli
from service.observability.background import log_in_background

def work():
    while True:
        logging.critical("at work")

def load_beside_others(*arguments, **options):
    IN_BACKGROUND
    for _ in range(4):
        threading.Thread(target=work, daemon=True).start()
    time.sleep(0.1)
    return load_settings(*arguments, **options)

load_settings, cli.load_settings = cli.load_settings, load_beside_others
cli.main(["serve", "--port", "eighty", "--log-format", "json"])
"""


@pytest.mark.parametrize("begin", ["pass", "log_in_background()"])
def test_the_cause_is_the_last_word_whatever_threads_say_meanwhile(begin):
    code = FAIL.replace("IN_BACKGROUND", begin)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    first, last = lines[0]["message"], [line["message"] for line in lines if "dropped_log_lines" not in line][-1]
    assert (done.returncode, first) == (1, "at work")
    assert last.startswith("--port: Input should be a valid integer")
