"""The process that renders one chat template: `python -m service.text.template_process`, started by `template_worker`.

Requests come on standard input and answers go to standard output, each with its length in front. The process has no
environment and no more memory than it was allowed, writes no files, and is killed if a rendering takes too long, even
if its parent is gone.
"""

import json
import resource
import signal
import sys
from typing import IO

from jinja2.exceptions import TemplateError, TemplateSyntaxError

from service.text.sandbox import BrokenTemplate, SandboxedTemplate

# The first byte of an answer.
RENDERED, REJECTED, BROKEN, TOO_LARGE, MALFORMED = b"RXBLM"
LENGTH_BYTES = 8
MAX_HANDLES = 16
GRACE_S = 1.0  # for the sandbox's own limit, which names its reason


def frame(content: bytes) -> bytes:
    """Return bytes with their length in front."""
    return len(content).to_bytes(LENGTH_BYTES) + content


def main(memory_bytes: int, render_s: float) -> None:
    """Compile the template that comes first, report its variables, then render until the input ends."""
    _limit(memory_bytes)
    template: SandboxedTemplate | None = None
    while (content := _read_frame(sys.stdin.buffer)) is not None:
        signal.setitimer(signal.ITIMER_REAL, render_s + GRACE_S)
        if template is None:
            template, answer = _compile(content.decode())
        else:
            answer = _render(template, content)
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.stdout.buffer.write(frame(answer))
        sys.stdout.buffer.flush()
        if template is None or answer[0] == TOO_LARGE:
            return


def _read_frame(stream: IO[bytes]) -> bytes | None:
    head = stream.read(LENGTH_BYTES)
    return stream.read(int.from_bytes(head)) if len(head) == LENGTH_BYTES else None


def _limit(memory_bytes: int) -> None:
    """Bound what this process may take, as far as the system bounds it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the parent too, which then ends the input
    limits = {resource.RLIMIT_AS: memory_bytes, resource.RLIMIT_NOFILE: MAX_HANDLES}
    for limit, value in (limits | {resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0}).items():
        resource.setrlimit(limit, (value, value))


def _compile(source: str) -> tuple[SandboxedTemplate | None, bytes]:
    try:
        template = SandboxedTemplate(source)
        return template, bytes([RENDERED]) + json.dumps(sorted(template.variables)).encode()
    except TemplateSyntaxError as error:
        return None, bytes([MALFORMED]) + json.dumps([error.message, error.lineno]).encode()
    except RecursionError:
        return None, bytes([BROKEN])
    except MemoryError:
        return None, bytes([TOO_LARGE])


def _render(template: SandboxedTemplate, content: bytes) -> bytes:
    try:
        return bytes([RENDERED]) + template.render(json.loads(content)).encode("utf-8", "surrogatepass")
    except TemplateError as error:
        return bytes([REJECTED]) + str(error).encode("utf-8", "surrogatepass")
    except MemoryError:
        return bytes([TOO_LARGE])
    except BrokenTemplate as error:
        return bytes([BROKEN]) + str(error).encode()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
