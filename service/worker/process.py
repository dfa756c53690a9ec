"""A process for untrusted or long work, with limits of memory and time: `python -m service.worker.process`.

It renders the chat template of a checkpoint, whose author is not trusted with code, decodes files of clients, and works
on long bodies, which would hold the engine's interpreter. Both sides are here: `WorkerProcess` in the service, `main`
in the process.

A call goes in as a pickled function of a module and its arguments, long ones of these behind it. An answer is bytes, or
an error as JSON: it is never unpickled, since what the process works on may have taken it over. The process has no
environment and writes no files. It is killed when a call exceeds a limit, and when its parent is gone; the next call
gets a new one.
"""

import json
import logging
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import IO, Any, NamedTuple

from service import errors
from service.errors import MalformedCheckpoint, RequestError, ServiceError, WorkerBusy, WorkerKilled

logger = logging.getLogger(__name__)

MEBIBYTE = 1024 * 1024
LENGTH_BYTES = 8  # before each part of a call, and each answer
APART_BYTES = 1024 * 1024  # of an argument that is sent apart, and not copied into the call
HEAD_BYTES = 1 + 8  # of an answer: its outcome, and the microseconds of a processor
MAX_HANDLES = 64
START_S = 60.0  # of a new process, on a busy machine, in addition to a call's own time
# A call has to share the processor with the engine's steps, which come first.
WALL_S_PER_PROCESSOR_S = 4.0
# An answer takes less memory than what it was made from.
MAX_ANSWER_SHARE = 1 / 8
# Errors of requests that a function may raise have these; others would say what only the service may, or set headers.
RAISED_STATUSES = frozenset({400, 413})
# What ends a process that has exceeded a limit, or that has a bug; another one was sent from outside.
OWN_SIGNALS = frozenset({signal.SIGPROF, signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})
EXIT_S = 1.0  # in which a process that has closed its channel is gone
ENVIRONMENT = {"PYTHONUTF8": "1", "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


class WorkerOutcome(IntEnum):
    """How a call has ended: the first byte of an answer."""

    RESULT = 0
    ERROR = 1  # a `ServiceError`
    FAULT = 2  # a bug
    OUT_OF_MEMORY = 3


class WorkerAnswer(NamedTuple):
    """What a call has returned."""

    content: bytearray
    processor_s: float


class WorkerCall(NamedTuple):
    """A function of a module, and its arguments."""

    function: Callable[..., bytes | bytearray]
    arguments: tuple[Any, ...] = ()


class WorkerProcess:
    """A process that answers calls one after the other; it may be used from several threads."""

    def __init__(
        self,
        *,
        failure: Callable[[str], ServiceError],
        memory_bytes: int,
        processor_s: float,
        max_answer_bytes: int | None = None,
        first: WorkerCall | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            failure: returns the error of a call that has exceeded a limit, from the reason.
            memory_bytes: the most data that the process may have, the interpreter included.
            processor_s: the longest call.
            max_answer_bytes: the longest answer; None for an eighth of the memory.
            first: what each new process is called with before anything else, such as compiling a template.
        """
        self._failure, self._first = failure, first
        self._memory_bytes, self._processor_s = memory_bytes, processor_s
        self._max_answer_bytes = max_answer_bytes or int(MAX_ANSWER_SHARE * memory_bytes)
        self._wall_s = WALL_S_PER_PROCESSOR_S * processor_s
        self._lock = threading.Lock()
        self._child: _Child | None = None
        self.num_starts = 0

    @property
    def pid(self) -> int | None:
        """The id of the running process, if any."""
        return None if self._child is None else self._child.popen.pid

    def start(self) -> None:
        """Start the process unless it runs; it begins its first call while the caller goes on."""
        with self._lock:
            self._running()

    def first_answer(self) -> bytearray:
        """Return the answer to the first call once it is there; raises as `call`."""
        return self._locked(lambda child: child.first_answer)

    def call(self, function: Callable[..., bytes | bytearray], *arguments: Any) -> WorkerAnswer:
        """Call a module's function in the process, which is started if none runs, and return its result.

        Raises:
            ServiceError: the function has raised it, or `failure` has made it of the limit that was exceeded.
            WorkerBusy: other calls have taken too long.
            WorkerKilled: something outside of this service has ended the process.
            RuntimeError: the function has a bug, or a native library panicked.
        """
        request = _parts(function, arguments, self._processor_s)

        def ask(child: "_Child") -> WorkerAnswer:
            if self._first is not None:
                assert child.first_answer is not None
            child.send(request, self._wall_s)
            return child.receive(self._wall_s)

        return self._locked(ask)

    def end(self) -> None:
        """Kill the process, whatever it is doing; a call that it was answering fails."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()

    def _locked[T](self, ask: "Callable[[_Child], T]") -> T:
        if not self._lock.acquire(timeout=self._wall_s):
            raise WorkerBusy(self._wall_s)
        try:
            try:
                return ask(self._running())
            except TimeoutError:
                reason: str | None = "took too long"
            except MemoryError:
                reason = "took too much memory"
            except (OSError, EOFError):
                reason = "took too long, or crashed"
                # So does the system if memory is short. One that `end` has killed is no child any more.
                if self._child is not None and self._child.was_killed():
                    reason = None
            self.end()
            if self._first is not None:
                self._running()  # so that the next call finds it ready
        finally:
            self._lock.release()
        logger.warning("a worker process was killed", extra={"reason": reason or "a signal from outside"})
        raise WorkerKilled if reason is None else self._failure(reason)

    def _running(self) -> "_Child":
        if self._child is None:
            self.num_starts += 1
            self._child = _Child(self._memory_bytes, self._processor_s, self._max_answer_bytes, self._first)
        return self._child


class _Child:
    """The parent's side of one process."""

    def __init__(self, memory_bytes: int, processor_s: float, max_answer_bytes: int, first: WorkerCall | None) -> None:
        self._max_answer_bytes = max_answer_bytes
        self._first_s = START_S + WALL_S_PER_PROCESSOR_S * processor_s
        self._first_answer: bytearray | ServiceError | None = None
        self._channel, theirs = socket.socketpair()
        with theirs:
            # Without `site`, which takes as long to import as Jinja, and without the secrets of this environment.
            self.popen = subprocess.Popen(
                [sys.executable, "-S", "-P", "-m", __name__, str(memory_bytes)],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,  # a traceback could quote what a client sent
                env=ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
            )
        weakref.finalize(self, _end, self._channel, self.popen)
        if first is not None:
            self.send(_parts(*first, processor_s), START_S)

    @property
    def first_answer(self) -> bytearray:
        """The answer to the first call, which is waited for."""
        if self._first_answer is None:
            try:
                self._first_answer = self.receive(self._first_s).content
            except ServiceError as error:
                self._first_answer = error
        if isinstance(self._first_answer, ServiceError):
            raise self._first_answer
        return self._first_answer

    def send(self, request: Sequence[bytes], timeout_s: float) -> None:
        """Send the parts of a call; raises OSError if the process is gone."""
        self._channel.settimeout(timeout_s)
        self._channel.sendall(len(request).to_bytes(LENGTH_BYTES))
        for part in request:
            self._channel.sendall(len(part).to_bytes(LENGTH_BYTES))
            self._channel.sendall(part)  # not copied behind its length: it may have many megabytes

    def receive(self, timeout_s: float) -> WorkerAnswer:
        """Return the answer to the oldest call that has none.

        Raises:
            ServiceError, RuntimeError: the function has raised it.
            MemoryError: the process has too little memory for the call.
            OSError, EOFError: there is no answer, or one that is too large.
        """
        end_s = time.monotonic() + timeout_s
        num_bytes = int.from_bytes(self._read(LENGTH_BYTES, end_s)) - HEAD_BYTES
        if not 0 <= num_bytes <= self._max_answer_bytes:
            raise EOFError
        head, content = self._read(HEAD_BYTES, end_s), self._read(num_bytes, end_s)
        match head[0]:
            case WorkerOutcome.RESULT:
                return WorkerAnswer(content, int.from_bytes(head[1:]) / 1e6)
            case WorkerOutcome.ERROR:
                raise error_of(content)
            case WorkerOutcome.FAULT:
                raise RuntimeError(f"in a worker process: {content.decode(errors='replace')}")
            case WorkerOutcome.OUT_OF_MEMORY:
                raise MemoryError
            case _:
                raise EOFError

    def _read(self, num_bytes: int, end_s: float) -> bytearray:
        """Return a number of bytes, read into their own memory, since an answer may have hundreds of megabytes."""
        received = bytearray(num_bytes)
        view = memoryview(received)
        while view:
            self._channel.settimeout(max(1e-3, end_s - time.monotonic()))
            num_read = self._channel.recv_into(view)
            if not num_read:
                raise EOFError
            view = view[num_read:]
        return received

    def was_killed(self) -> bool:
        """Return whether a signal from outside has ended the process."""
        try:
            return -self.popen.wait(EXIT_S) in set(signal.Signals) - OWN_SIGNALS
        except subprocess.TimeoutExpired:
            return False

    def kill(self) -> None:
        """Kill the process; the channel stays open for a thread that reads it."""
        self.popen.kill()
        self.popen.wait()


def _parts(function: Callable[..., Any], arguments: Sequence[Any], processor_s: float) -> list[bytes]:
    """Return how long a call may take, the pickled call, and what is sent behind it."""
    is_apart = [isinstance(argument, bytes) and len(argument) >= APART_BYTES for argument in arguments]
    sent = [pickle.PickleBuffer(a) if apart else a for a, apart in zip(arguments, is_apart, strict=True)]
    pickled = pickle.dumps((function, sent), pickle.HIGHEST_PROTOCOL, buffer_callback=lambda _: False)
    return [
        str(processor_s).encode(),
        pickled,
        *(argument for argument, apart in zip(arguments, is_apart, strict=True) if apart),
    ]


def _end(channel: socket.socket, popen: "subprocess.Popen[bytes]") -> None:
    channel.close()
    popen.kill()
    popen.wait()


def error_json(error: ServiceError) -> bytes:
    """Return an error as its class, its arguments and its fields, for `error_of` in another process."""
    return json.dumps([type(error).__name__, error.args, vars(error)]).encode()


def error_of(content: bytes | bytearray) -> ServiceError:
    """Return the error that `error_json` has written.

    Raises:
        EOFError: no function raises such an error, so something that has taken the process over has written it.
    """
    try:
        name, arguments, fields = json.loads(content)
        kind = vars(errors)[name]
        # Defends against T39.
        if not _may_be_raised(kind, fields):
            raise ValueError(name)
        error: ServiceError = kind.__new__(kind, *arguments)  # not `__init__`, whose parameters make the message
        vars(error).update(fields)
    except (ValueError, TypeError, KeyError, AttributeError) as malformed:
        raise EOFError from malformed
    return error


def _may_be_raised(kind: Any, fields: dict[str, Any]) -> bool:
    """Return whether a function may raise an error with these fields: one about its input, as its class states it."""
    if not (isinstance(kind, type) and issubclass(kind, RequestError | MalformedCheckpoint)):
        return False
    if issubclass(kind, RequestError) and kind.status not in RAISED_STATUSES:
        return False
    stated = fields.get("message", ""), fields.get("param") or ""
    # A field of a class is the status, the code, or what becomes a header.
    are_own = not any(hasattr(kind, name) or hasattr(RequestError, name) for name in fields)
    return all(isinstance(value, str) for value in stated) and are_own


def main(memory_bytes: int) -> None:
    """Answer calls until the input ends."""
    _limit(memory_bytes)
    while request := _read_call(sys.stdin.buffer):
        outcome, call_s, content = _answered(request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        request.clear()
        head = bytes([outcome]) + int(call_s * 1e6).to_bytes(HEAD_BYTES - 1)
        sys.stdout.buffer.write((len(head) + len(content)).to_bytes(LENGTH_BYTES) + head)
        sys.stdout.buffer.write(content)  # not copied behind its head: it may have hundreds of megabytes
        sys.stdout.buffer.flush()
        if outcome is WorkerOutcome.OUT_OF_MEMORY:
            return


def limit_rest(processor_s: float) -> None:
    """Limit the processor time of the current call, from now on, in seconds."""
    signal.setitimer(signal.ITIMER_PROF, processor_s)


def _limit(memory_bytes: int) -> None:
    """Bound what this process may take, as far as the system bounds it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the parent too, which then ends the input
    limits = {resource.RLIMIT_DATA: memory_bytes, resource.RLIMIT_NOFILE: MAX_HANDLES}
    for limit, value in (limits | {resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0}).items():
        resource.setrlimit(limit, (value, value))


def _read_call(stream: IO[bytes]) -> list[bytes]:
    """Return the parts of the next call; none at the end of the input."""
    return [stream.read(_read_number(stream)) for _ in range(_read_number(stream))]


def _read_number(stream: IO[bytes]) -> int:
    return int.from_bytes(stream.read(LENGTH_BYTES))


def _answered(request: Sequence[bytes]) -> tuple[WorkerOutcome, float, bytes | bytearray]:
    """Return the outcome of a call, its processor seconds without those of imports, and what it returns."""
    begin_s = time.process_time()
    try:
        function, arguments = pickle.loads(request[1], buffers=request[2:])
        signal.setitimer(signal.ITIMER_PROF, float(request[0]))  # whose signal ends the process
        begin_s = time.process_time()
        outcome, content = WorkerOutcome.RESULT, function(*arguments)
    except ServiceError as error:
        outcome, content = WorkerOutcome.ERROR, error_json(error)
    except MemoryError:
        return WorkerOutcome.OUT_OF_MEMORY, 0.0, b""
    except (KeyboardInterrupt, SystemExit):
        raise
    # Panics of native libraries are no `Exception`. Its own message could quote what a client sent.
    except BaseException as error:
        frames = "".join(traceback.format_tb(error.__traceback__))
        return WorkerOutcome.FAULT, 0.0, f"{type(error).__name__}\n{frames}".encode()
    return outcome, time.process_time() - begin_s, content


if __name__ == "__main__":
    main(int(sys.argv[1]))
