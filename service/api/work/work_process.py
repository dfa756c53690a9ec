"""A process that calls functions on long bodies, so that they do not hold this process's interpreter.

It is started with the first call and ended when none has come for a while. It yields to the threads that run steps, has
limits of time and memory, and is killed with the request that it works for.
"""

import asyncio
import contextlib
import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import anyio

from service.api.work.work_main import LENGTH_BYTES, Outcome
from service.errors import BodyTooLaborious

logger = logging.getLogger(__name__)

PROCESSOR_S = 30.0  # for one call
WALL_S = 120.0  # for one call, since steps come first
GRACE_S = (
    1.0  # that a call may still take when nobody waits for it any more; a new process takes about as long to start
)
IDLE_S = 60.0
# Of memory: the interpreter, and a body as the largest structure and the most tokens that it can have.
BASE_BYTES, BYTES_PER_BODY_BYTE = 768 * 1024 * 1024, 256
READ_BYTES = 256 * 1024
LARGE_RESULT_BYTES = 64 * 1024  # is unpickled off the event loop
# One thread of its own for a call; without the secrets of this environment.
ENVIRONMENT = {"PYTHONUTF8": "1", "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


class InOwnThread(Protocol):
    """Runs work in a thread of low priority, which the processes inherit that it starts."""

    def __call__[T](self, work: Callable[[], T], /) -> Awaitable[T]:
        """Return the result of the work."""
        ...


class WorkProcess:
    """The process; it calls one function at a time. Belongs to the event loop."""

    def __init__(self, in_own_thread: InOwnThread, *, max_body_bytes: int) -> None:
        """Start nothing yet; `max_body_bytes` is the longest body that its functions get."""
        self._in_own_thread = in_own_thread
        self._memory_bytes = BASE_BYTES + BYTES_PER_BODY_BYTE * max_body_bytes
        self._free = anyio.CapacityLimiter(1)
        self._child: _Child | None = None
        self._answering = set[asyncio.Task[Any]]()
        self._ending: asyncio.TimerHandle | None = None

    @property
    def pid(self) -> int | None:
        """The process's id; None if there is none now."""
        return None if self._child is None else self._child.pid

    async def call(self, note: Callable[[float], None], function: Callable[..., Any], *arguments: Any) -> Any:
        """Return what a function of a module returns, called in the process.

        The process is killed if the function still runs a moment after this call was cancelled.

        Args:
            note: is told how many seconds of a processor the call has taken, once it has ended.
            function: what to call; errors of this service that it raises are raised here.
            arguments: its arguments.

        Raises:
            BodyTooLaborious: it has taken too much time or memory.
            RuntimeError: it has raised another error.
        """
        caller, loop = object(), asyncio.get_running_loop()
        await self._free.acquire_on_behalf_of(caller)
        answering = asyncio.ensure_future(self._answer((function, arguments)))
        self._answering.add(answering)

        def end(_: object) -> None:
            self._answering.discard(answering)
            self._free.release_on_behalf_of(caller)
            if not answering.cancelled() and answering.exception() is None:
                note(answering.result()[1])

        answering.add_done_callback(end)
        try:
            content, _ = await asyncio.shield(answering)
        except asyncio.CancelledError:
            loop.call_later(GRACE_S, answering.cancel)
            raise
        if len(content) > LARGE_RESULT_BYTES:
            outcome, result = await anyio.to_thread.run_sync(_result, content)
        else:
            outcome, result = _result(content)
        if outcome is Outcome.ERROR:
            raise result
        return result

    async def _answer(self, request: Any) -> tuple[bytes, float]:
        """Return the outcome and the result of a call, and its seconds of a processor; kill a process that fails."""
        self._stay()
        reason = "took too long"
        try:
            async with asyncio.timeout(WALL_S):
                if self._child is None:
                    self._child = await self._in_own_thread(lambda: _Child(self._memory_bytes))
                answer = await self._child.ask(pickle.dumps(request, pickle.HIGHEST_PROTOCOL))
        except (OSError, EOFError) as error:  # TimeoutError is one
            if not isinstance(error, TimeoutError):
                reason = "took too long or too much memory"
            answer = None
        except asyncio.CancelledError:
            self.end()
            raise
        if answer is not None and answer[0] == Outcome.TOO_LARGE:
            reason, answer = "took too much memory", None
        if answer is None:
            logger.warning("the process for long bodies was ended", extra={"reason": reason})
            self.end()
            raise BodyTooLaborious(reason)
        self._ending = asyncio.get_running_loop().call_later(IDLE_S, self.end)
        content = answer[1 + LENGTH_BYTES :]
        if answer[0] == Outcome.FAULT:
            raise RuntimeError(f"in the process for long bodies: {content.decode()}")
        return answer[:1] + content, int.from_bytes(answer[1 : 1 + LENGTH_BYTES]) / 1e6

    def _stay(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self._stay()
        if self._child is not None:
            self._child.end()
            self._child = None


class _Child:
    """A process that waits for its first call."""

    def __init__(self, memory_bytes: int) -> None:
        self._channel, theirs = socket.socketpair()
        with theirs:
            popen = subprocess.Popen(
                [
                    *(sys.executable, "-S", "-P", "-m", "service.api.work.work_main"),
                    *(str(memory_bytes), str(PROCESSOR_S)),
                ],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,  # a traceback could quote the prompt
                process_group=0,  # with the processes that render its templates
                env=ENVIRONMENT | {"PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
            )
        self.pid = popen.pid
        self._channel.setblocking(False)
        self.end = weakref.finalize(self, _end, self._channel, popen)

    async def ask(self, request: bytes) -> bytes:
        """Return the answer to a request; raises OSError or EOFError if there is none."""
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._channel, len(request).to_bytes(LENGTH_BYTES))
        await loop.sock_sendall(self._channel, request)
        received, num_bytes = bytearray(), LENGTH_BYTES
        while len(received) < num_bytes:
            more = await loop.sock_recv(self._channel, READ_BYTES)
            if not more:
                raise EOFError
            received += more
            if num_bytes == LENGTH_BYTES and len(received) >= LENGTH_BYTES:
                num_bytes += int.from_bytes(received[:LENGTH_BYTES])
        return bytes(received[LENGTH_BYTES:])


def _result(content: bytes) -> tuple[Outcome, Any]:
    return Outcome(content[0]), pickle.loads(memoryview(content)[1:])


def _end(channel: socket.socket, popen: "subprocess.Popen[bytes]") -> None:
    channel.close()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(popen.pid, signal.SIGKILL)
    popen.wait()
