"""Functions that the process for long bodies is asked to call."""

import os
import time

from service.errors import ContextLengthExceeded


def state(name):
    """The process: its id, its niceness, and a variable of its environment."""
    return os.getpid(), os.getpriority(os.PRIO_PROCESS, 0), os.environ.get(name)


def echo(content):
    return content


def refuse():
    raise ContextLengthExceeded(prompt_tokens=9, max_tokens=1, limit_tokens=5, param="prompt")


def divide_by_zero(secret):
    raise ZeroDivisionError(secret)


def crash():
    os.abort()


def spin(seconds):
    end_s = time.process_time() + seconds
    while time.process_time() < end_s:
        pass


def allocate(num_bytes):
    return len(bytearray(num_bytes))


def write(path):
    with open(path, "wb") as file:
        file.write(b"x")
        file.flush()
