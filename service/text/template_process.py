"""A chat template in a process of its own, with limits of memory and time: what runs a checkpoint's template."""

import json
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from service.errors import TemplateFailed, WorkerKilled
from service.worker.process import MEBIBYTE, WorkerCall, WorkerProcess

if TYPE_CHECKING:  # only the process imports Jinja
    from service.text.sandbox import SandboxedTemplate

# The interpreter, the largest body, and the largest output several times.
MEMORY_BYTES = 768 * MEBIBYTE
RENDER_S = 10.0  # of a processor


class TemplateProcess:
    """A template that another process compiles and renders; Jinja evaluates constants while it compiles."""

    def __init__(
        self, source: str, uri: str, file: str, *, memory_bytes: int = MEMORY_BYTES, render_s: float = RENDER_S
    ) -> None:
        """Start the process, which compiles the template while the caller goes on.

        Args:
            source: the template.
            uri: where it came from, for error messages.
            file: the name of its file there.
            memory_bytes: the most data that the process may have.
            render_s: the longest rendering, in seconds of a processor.
        """
        self._process = WorkerProcess(
            failure=TemplateFailed,
            memory_bytes=memory_bytes,
            processor_s=render_s,
            first=WorkerCall(_compile, (source, uri, file)),
        )
        self._process.start()

    @cached_property
    def variables(self) -> frozenset[str]:
        """The names that the template reads and does not define, once it is compiled.

        Raises:
            MalformedCheckpoint: it does not compile.
            TemplateFailed: it has exceeded a limit of its process.
        """
        try:
            answer = self._process.first_answer()
        except WorkerKilled:  # which says nothing of the template; another process has been started
            answer = self._process.first_answer()
        return frozenset(json.loads(answer))

    def render(self, arguments: Mapping[str, Any]) -> str:
        """Return the output; raises as `SandboxedTemplate.render`, and TemplateFailed for an exceeded limit."""
        return self._process.call(_render, arguments).content.decode("utf-8", "surrogatepass")


_compiled: "list[SandboxedTemplate]" = []  # in the process, the one that it renders


def _compile(source: str, uri: str, file: str) -> bytes:
    from service.text.sandbox import SandboxedTemplate

    _compiled[:] = [SandboxedTemplate(source, uri, file)]
    return json.dumps(sorted(_compiled[0].variables)).encode()


def _render(arguments: Mapping[str, Any]) -> bytes:
    return _compiled[0].render(arguments).encode("utf-8", "surrogatepass")
