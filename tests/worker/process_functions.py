"""Functions that a worker process is asked to call."""

import os
import sys
import time

from service.errors import ContextLengthExceeded
from service.worker.process import LENGTH_BYTES

_kept = []


def state(name):
    """The process: its id, and a variable of its environment."""
    return f"{os.getpid()} {os.environ.get(name)}".encode()


def niceness():
    return str(os.getpriority(os.PRIO_PROCESS, 0)).encode()


def echo(content):
    return content


def keep(content):
    _kept[:] = [content]
    return b"kept"


def kept():
    return _kept[0]


def refuse():
    raise ContextLengthExceeded(prompt_tokens=9, max_tokens=1, max_model_len=5, param="prompt")


def divide_by_zero(secret):
    raise ZeroDivisionError(secret)


def crash():
    os.abort()


def spin(seconds):
    end_s = time.process_time() + seconds
    while time.process_time() < end_s:
        pass
    return b""


def wait(seconds):
    time.sleep(seconds)
    return b""


def allocate(num_bytes):
    return bytearray(num_bytes)[:1].replace(b"\0", b"x")


def answer_with(num_bytes):
    """Answer as a process does that is not bound by its own memory."""
    sys.stdout.buffer.write(num_bytes.to_bytes(LENGTH_BYTES))
    sys.stdout.buffer.flush()
    time.sleep(60)


def answer_raw(answer):
    """Answer with any bytes, and go on to nothing else."""
    sys.stdout.buffer.write(len(answer).to_bytes(LENGTH_BYTES) + answer)
    sys.stdout.buffer.flush()
    time.sleep(60)


def write(path):
    with open(path, "wb") as file:
        file.write(b"x")
        file.flush()
    return b""


class Panic(BaseException):
    """As native libraries written in Rust raise it."""


def panic():
    raise Panic
