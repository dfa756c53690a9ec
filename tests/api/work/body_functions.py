"""Functions that the process for long bodies is asked to call."""

import os
import time


def niceness(body):
    return str(os.getpriority(os.PRIO_PROCESS, 0)).encode()


def echo(body):
    return body.content


def spin(body):
    """Take as many seconds of a processor as the body says."""
    end_s = time.process_time() + float(body.content)
    while time.process_time() < end_s:
        pass
    return b"done"


def ids(body, model) -> bytes:
    return model.name.encode()


def allocate(body):
    """Take as many MiB as the body says."""
    bytearray(int(body.content) * 2**20)
    return b"done"
