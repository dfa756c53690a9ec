"""The process that works on long bodies: `python -m service.api.work.work_main`, started by `work_process`.

Functions and their arguments come on standard input, pickled, and results go to standard output, each with its length
in front. The process has no environment, no more memory than it was allowed, writes no files, and is killed if one
function takes too long, even if its parent is gone.
"""

import pickle
import resource
import signal
import sys
import time
import traceback
from enum import IntEnum
from typing import IO

from service.errors import ServiceError

LENGTH_BYTES = 8
MAX_HANDLES = 64


class Outcome(IntEnum):
    """How a call has ended: the first byte of an answer."""

    RESULT = 0
    ERROR = 1  # one that answers the request
    FAULT = 2  # of this service
    TOO_LARGE = 3


def main(memory_bytes: int, processor_s: float) -> None:
    """Call what comes until the input ends."""
    _limit(memory_bytes)
    while (request := _read_frame(sys.stdin.buffer)) is not None:
        signal.setitimer(signal.ITIMER_PROF, processor_s)
        outcome, seconds, content = _call(request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        del request
        _write(outcome, seconds, content)
        if outcome is Outcome.TOO_LARGE:
            return


def _limit(memory_bytes: int) -> None:
    """Bound what this process may take, as far as the system bounds it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the parent too, which then ends the input
    limits = {resource.RLIMIT_DATA: memory_bytes, resource.RLIMIT_NOFILE: MAX_HANDLES}
    for limit, value in (limits | {resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0}).items():
        resource.setrlimit(limit, (value, value))


def _read_frame(stream: IO[bytes]) -> bytes | None:
    head = stream.read(LENGTH_BYTES)
    return stream.read(int.from_bytes(head)) if len(head) == LENGTH_BYTES else None


def _call(request: bytes) -> tuple[Outcome, float, bytes]:
    """Return the outcome of a call, its seconds of a processor without those of imports, and what it returns."""
    begin_s = time.process_time()
    try:
        function, arguments = pickle.loads(request)
        begin_s = time.process_time()
        outcome, result = Outcome.RESULT, function(*arguments)
    except ServiceError as error:
        outcome, result = Outcome.ERROR, error
    except MemoryError:
        return Outcome.TOO_LARGE, 0.0, b""
    except Exception as error:  # its own message could quote the prompt
        frames = "".join(traceback.format_tb(error.__traceback__))
        return Outcome.FAULT, 0.0, f"{type(error).__name__}\n{frames}".encode()
    content = pickle.dumps(result, pickle.HIGHEST_PROTOCOL)
    return outcome, time.process_time() - begin_s, content


def _write(outcome: Outcome, seconds: float, content: bytes) -> None:
    head = bytes([outcome]) + int(seconds * 1e6).to_bytes(LENGTH_BYTES)
    sys.stdout.buffer.write((len(head) + len(content)).to_bytes(LENGTH_BYTES) + head + content)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
