"""How a process ends while threads are at work: with its code, and with the cause as its last word."""

import subprocess
import sys

FAIL = """
import atexit, logging, sys, threading, time
from service.cli import _exit

is_ending = threading.Event()

def work():
    is_ending.wait()
    logging.critical("something ended under me")

def end():
    is_ending.set()
    time.sleep(0.3)

logging.basicConfig(stream=sys.stdout, format="%(message)s")
threading.Thread(target=work, daemon=True).start()
atexit.register(end)
logging.critical("the cause")
_exit(3)
"""


def test_the_cause_is_the_last_word():
    done = subprocess.run([sys.executable, "-c", FAIL], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout.splitlines()) == (3, ["the cause"])
