"""How a process ends while threads are at work: with its code, and with the cause as its last word."""

import subprocess
import sys

FAIL = """
import logging, sys, threading, time
from service.cli import _exit

def work():
    while True:
        logging.critical("at work")

logging.basicConfig(stream=sys.stdout, format="%(message)s")
for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
time.sleep(0.1)
_exit(3, lambda: logging.critical("the cause"))
"""


def test_the_cause_is_the_last_word_whatever_threads_say_meanwhile():
    done = subprocess.run([sys.executable, "-c", FAIL], capture_output=True, text=True, check=False, timeout=60)
    words = done.stdout.splitlines()
    assert (done.returncode, words[0], words[-1]) == (3, "at work", "the cause")
