"""Terminal output of a start: a progress line, then the model, its URLs and a curl command.

Without a terminal, with LOG_FORMAT=json or with LOG_LEVEL=DEBUG, the start writes log lines instead.
"""

import logging
import shlex
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from service.observability.progress import human_bytes, progress_line
from service.server.service import Service

# Loggers whose INFO lines are replaced by the terminal output.
START_LOGGERS = ("service.start", "service.bundles", "service.checkpoint", "service.storage", "uvicorn")
ANY_HOSTS = frozenset({"0.0.0.0", "::", "127.0.0.1", "::1"})
POLL_INTERVAL_S = 0.1


def show_start(service: Service, host: str, port: int) -> None:
    """Show the start on the terminal from a thread, in place of its log lines."""
    for name in START_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    name = "localhost" if host in ANY_HOSTS else f"[{host}]" if ":" in host else host
    output = StartOutput(service, f"http://{name}:{port}")
    threading.Thread(target=output.write, name="terminal", daemon=True).start()


class StartOutput:
    """The terminal output of a start."""

    def __init__(self, service: Service, url: str) -> None:
        self._service = service
        self._url = url

    def write(self) -> None:
        """Write until the start is complete or the process is about to end."""
        progress = self._service.start_progress
        where = f"; {self._url} shows the start" if self._service.settings.page else f" at {self._url}"
        print(f"Levserve is starting{where}", flush=True)
        if not self._wait(lambda: progress.is_answering and self._service.decided.is_set(), "Loading"):
            return
        print("\n".join(self._introduction()), flush=True)
        if progress.is_complete:
            return
        if self._wait(lambda: progress.is_complete or progress.obstacle is not None, "Compiling in the background"):
            outcome = "All executables are ready" if progress.is_complete else "Some executables are unavailable"
            print(f"{outcome} after {progress.elapsed_s():.1f} s.", flush=True)

    def _wait(self, is_done: Callable[[], bool], activity: str) -> bool:
        """Show the progress line until done; return False if the process is about to end first."""
        service = self._service

        def line() -> str:
            return f"{activity}: {progress_text(service.progress())}"[: shutil.get_terminal_size().columns - 1]

        with progress_line(line, lambda: None, log_interval_s=60):
            while not is_done():
                if service.error is not None or service.is_draining:
                    return False
                time.sleep(POLL_INTERVAL_S)
        return True

    def _introduction(self) -> list[str]:
        settings, model = self._service.settings, self._service.first_model
        seconds = self._service.start_progress.answering_s or 0.0
        if model is None:
            return ["", f"Ready after {seconds:.1f} s. Models are loaded on request.", ""]
        curl = command(self._url, model.name, model.example, needs_key=bool(self._service.keys))
        pages = [f"  Chat  {self._url}/", f"  API   {self._url}/v1, documented at {self._url}/docs"]
        return [
            "",
            f"{model.name} is ready after {seconds:.1f} s, with a context of {model.max_model_len} tokens.",
            "",
            *(pages if settings.page else [f"  API   {self._url}/v1"]),
            "",
            *(f"  {line}" for line in curl),
            "",
        ]


def command(url: str, model: str, example: tuple[str, Mapping[str, Any]], *, needs_key: bool) -> list[str]:
    """Return the lines of a curl command that sends an example request, given as route and fields, to the model."""
    import json

    route, fields = example
    return [
        f"curl {url}/v1/{route} -H 'Content-Type: application/json' \\",
        *(['  -H "Authorization: Bearer $API_KEY" \\'] if needs_key else []),
        f"  -d {shlex.quote(json.dumps({'model': model, **fields}, ensure_ascii=False))}",
    ]


def progress_text(progress: dict[str, Any]) -> str:
    """Format the progress of a start: percentage, bytes, executables, seconds left."""
    percent, left_s = progress["percent"], progress["estimated_seconds_left"]
    parts = [f"{percent} %"] if percent is not None and left_s else []
    if progress["bytes_done"] < progress["bytes_total"]:
        parts.append(f"weights {human_bytes(progress['bytes_done'])} of {human_bytes(progress['bytes_total'])}")
    if progress["executables_done"] < progress["executables_total"]:
        parts.append(f"executables {progress['executables_done']} of {progress['executables_total']}")
    # The service starts answering earlier, but that time cannot be estimated.
    parts.append(f"complete in about {left_s:.0f} s" if left_s else f"{progress['seconds']:.0f} s so far")
    return ", ".join(parts)
