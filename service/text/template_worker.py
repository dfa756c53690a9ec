"""A chat template that is compiled and rendered in a process of its own, which has limits and can be killed.

It is not compiled in this process either: Jinja evaluates constant expressions while it compiles.
"""

import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from jinja2.exceptions import TemplateError, TemplateSyntaxError

from service.errors import TemplateFailed
from service.text.sandbox import MAX_RENDER_S, MAX_RENDERED_CHARS, BrokenTemplate
from service.text.template_process import BROKEN, GRACE_S, LENGTH_BYTES, MALFORMED, REJECTED, RENDERED, TOO_LARGE, frame

logger = logging.getLogger(__name__)

# Of address space, which holds the interpreter, the largest body, and the largest output several times.
MEMORY_BYTES = 768 * 1024 * 1024
START_S = 60.0  # until the process has compiled the template, on a busy machine
MAX_ANSWER_BYTES = LENGTH_BYTES + 1 + 4 * MAX_RENDERED_CHARS
READ_BYTES = 256 * 1024


class TemplateWorker:
    """A `CompiledTemplate`; safe to use from several threads, which are served one after the other."""

    def __init__(self, source: str, *, memory_bytes: int = MEMORY_BYTES, render_s: float = MAX_RENDER_S) -> None:
        """Start the process; it compiles the template while the caller goes on.

        Args:
            source: of the template.
            memory_bytes: address space of the process.
            render_s: the longest rendering, in seconds.
        """
        self._source = source
        self._arguments = (str(memory_bytes), str(render_s))
        self._answer_s = render_s + 2 * GRACE_S
        self._lock = threading.Lock()
        self._processes = [self._start()]  # the one that renders; a list, which `_end` can empty
        weakref.finalize(self, _end, self._processes)

    @property
    def variables(self) -> frozenset[str]:
        """The names that the template reads and does not define."""
        with self._lock:
            return self._processes[0].variables

    def wait(self) -> None:
        """Wait until the template is compiled.

        Raises:
            TemplateSyntaxError: it is malformed.
            RecursionError: it is nested too deeply.
            TemplateFailed: it has exceeded a limit of its process.
        """
        assert self.variables is not None

    def render(self, arguments: Mapping[str, Any]) -> str:
        """Return the output.

        Args:
            arguments: what JSON can express.

        Raises:
            TemplateError: the template rejects the arguments, or exceeds a limit of the sandbox.
            BrokenTemplate: it has raised another error.
            TemplateFailed: it has exceeded a limit of its process.
        """
        request = json.dumps(arguments).encode()
        if not self._lock.acquire(timeout=self._answer_s):
            raise TemplateFailed("is busy with other requests for too long")
        try:
            kind, content = self._answer(request)
        finally:
            self._lock.release()
        text = content.decode("utf-8", "surrogatepass")
        if kind == REJECTED:
            raise TemplateError(text)
        if kind == BROKEN:
            raise BrokenTemplate(text)
        return text

    def _answer(self, request: bytes) -> tuple[int, bytes]:
        try:
            kind, content = self._processes[0].ask(request, self._answer_s)
            if kind in (RENDERED, REJECTED, BROKEN):
                return kind, content
            reason = "needs too much memory"
        except TemplateFailed as error:  # before it had compiled the template
            reason = error.reason
        except (OSError, EOFError):
            reason = "takes too long, or has crashed"
        _end(self._processes)
        self._processes.append(self._start())  # so that the next request finds it ready
        logger.error("the process of the chat template was replaced", extra={"reason": reason})
        raise TemplateFailed(reason)

    def _start(self) -> "_Process":
        return _Process(self._source, self._arguments)


class _Process:
    """A process that has been sent its template."""

    def __init__(self, source: str, arguments: tuple[str, ...]) -> None:
        self._channel, theirs = socket.socketpair()
        with theirs:
            # Without `site`, which takes as long to import as Jinja, and without the secrets of this environment.
            self._popen = subprocess.Popen(
                [sys.executable, "-S", "-P", "-m", "service.text.template_process", *arguments],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,  # a traceback could quote the prompt
                env={"PYTHONPATH": os.pathsep.join(path or "." for path in sys.path), "PYTHONUTF8": "1"},
            )
        self._channel.settimeout(START_S)
        self._channel.sendall(frame(source.encode()))

    @cached_property
    def variables(self) -> frozenset[str]:
        """What the process reports when it has compiled the template."""
        try:
            kind, content = self._receive(START_S)
        except (OSError, EOFError) as error:
            raise TemplateFailed("takes too long to be compiled, or its process has crashed") from error
        if kind == MALFORMED:
            message, line = json.loads(content)
            raise TemplateSyntaxError(message, line)
        if kind == BROKEN:
            raise RecursionError
        if kind == TOO_LARGE:
            raise TemplateFailed("needs too much memory to be compiled")
        return frozenset(json.loads(content))

    def ask(self, request: bytes, timeout_s: float) -> tuple[int, bytes]:
        """Send a request and return the kind and the content of the answer; raises OSError or EOFError without one."""
        assert self.variables is not None  # the first answer is the template's
        self._channel.settimeout(timeout_s)
        self._channel.sendall(frame(request))
        return self._receive(timeout_s)

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self._channel.close()
        self._popen.kill()
        self._popen.wait()

    def _receive(self, timeout_s: float) -> tuple[int, bytes]:
        end_s = time.monotonic() + timeout_s
        received = bytearray()
        num_bytes = LENGTH_BYTES
        while len(received) < num_bytes:
            if (left_s := end_s - time.monotonic()) <= 0:
                raise TimeoutError
            self._channel.settimeout(left_s)
            more = self._channel.recv(READ_BYTES)
            if not more:
                raise EOFError
            received += more
            if num_bytes == LENGTH_BYTES and len(received) >= LENGTH_BYTES:
                num_bytes += int.from_bytes(received[:LENGTH_BYTES])
                if num_bytes > MAX_ANSWER_BYTES:  # it is not the sandbox that answers
                    raise EOFError
        return received[LENGTH_BYTES], bytes(received[LENGTH_BYTES + 1 :])


def _end(processes: list[_Process]) -> None:
    while processes:
        processes.pop().end()
