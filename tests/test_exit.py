"""The end of a process while threads are at work: with its exit code, and the cause as its last line."""

import json
import subprocess
import sys

FAIL = """
import logging, threading, time
from service.cli import main
from service.observability.logs import configure_logging

def work():
    while True:
        logging.critical("at work")

configure_logging("INFO", "json")
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.1)
main(["serve", "--port", "eighty", "--log-format", "json"])
"""


def test_the_cause_is_the_last_word_whatever_threads_say_meanwhile():
    done = subprocess.run([sys.executable, "-c", FAIL], capture_output=True, text=True, check=False, timeout=60)
    first, *_, last = [json.loads(line)["message"] for line in done.stdout.splitlines()]
    assert (done.returncode, first) == (1, "at work")
    assert last.startswith("PORT: Input should be a valid integer")
