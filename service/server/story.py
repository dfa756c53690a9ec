"""Terminal output of a start: a progress line, then the model, its URLs and a curl command.

Elsewhere, with LOG_FORMAT=json and with LOG_LEVEL=DEBUG, the start's log lines say it all.
"""

import logging
import shlex
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from service.observability.progress import human_bytes, progress_line

if TYPE_CHECKING:
    from service.server.service import Service

# Their INFO lines are what the story replaces.
START_LOGGERS = ("service.start", "service.bundles", "service.checkpoint", "service.storage", "uvicorn")
ANY_HOSTS = frozenset({"0.0.0.0", "::", "127.0.0.1", "::1"})
LOOK_INTERVAL_S = 0.1


def begin_story(service: "Service", host: str, port: int) -> None:
    """Write the story from a thread, in place of the start's log lines."""
    for name in START_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    name = "localhost" if host in ANY_HOSTS else f"[{host}]" if ":" in host else host
    story = Story(service, f"http://{name}:{port}")
    threading.Thread(target=story.write, name="story", daemon=True).start()


class Story:
    """The lines of one start."""

    def __init__(self, service: "Service", url: str) -> None:
        self._service = service
        self._url = url

    def write(self) -> None:
        """Write the story until the start is complete or the process is about to end."""
        progress = self._service.start_progress
        where = f"; {self._url} shows the start" if self._service.settings.page else f" at {self._url}"
        print(f"Levserve is starting{where}", flush=True)
        if not self._wait(lambda: progress.is_answering and self._service.decided.is_set(), "Loading"):
            return
        print("\n".join(self._introduction()), flush=True)
        if progress.is_complete:
            return
        if self._wait(lambda: progress.is_complete or progress.obstacle is not None, "Compiling behind"):
            outcome = "All executables are in place" if progress.is_complete else "Some executables will be missing"
            print(f"{outcome} after {progress.elapsed_s():.1f} s.", flush=True)

    def _wait(self, is_so: Callable[[], bool], what: str) -> bool:
        """Show the moving line until something is so; return whether it came before the process is to end."""
        service = self._service

        def line() -> str:
            return f"{what}: {moving_line(service.progress())}"[: shutil.get_terminal_size().columns - 1]

        with progress_line(line, lambda: None, log_interval_s=60):
            while not is_so():
                if service.error is not None or service.is_draining:
                    return False
                time.sleep(LOOK_INTERVAL_S)
        return True

    def _introduction(self) -> list[str]:
        settings, model = self._service.settings, self._service.first_model
        seconds = self._service.start_progress.answering_s or 0.0
        if model is None:
            return ["", f"Ready after {seconds:.1f} s. A model is loaded when a request names it.", ""]
        asking = command(self._url, model.name, model.example, needs_key=bool(self._service.keys))
        pages = [f"  Chat  {self._url}/", f"  API   {self._url}/v1, described at {self._url}/docs"]
        return [
            "",
            f"{model.name} answers after {seconds:.1f} s, with a context of {model.max_model_len} tokens.",
            "",
            *(pages if settings.page else [f"  API   {self._url}/v1"]),
            "",
            *(f"  {line}" for line in asking),
            "",
        ]


def command(url: str, model: str, example: tuple[str, Mapping[str, Any]], *, needs_key: bool) -> list[str]:
    """Return the lines of a curl command that sends an example, a route and its fields, to the model."""
    import json

    route, asked = example
    return [
        f"curl {url}/v1/{route} -H 'Content-Type: application/json' \\",
        *(['  -H "Authorization: Bearer $API_KEY" \\'] if needs_key else []),
        f"  -d {shlex.quote(json.dumps({'model': model, **asked}, ensure_ascii=False))}",
    ]


def moving_line(progress: dict[str, Any]) -> str:
    """Return the state of a start as one line: percentage, bytes, executables, seconds left."""
    percent, left_s = progress["percent"], progress["estimated_seconds_left"]
    parts = [f"{percent} %"] if percent is not None and left_s else []
    if progress["bytes_done"] < progress["bytes_total"]:
        parts.append(f"weights {human_bytes(progress['bytes_done'])} of {human_bytes(progress['bytes_total'])}")
    if progress["executables_done"] < progress["executables_total"]:
        parts.append(f"executables {progress['executables_done']} of {progress['executables_total']}")
    # Requests are answered before that, at a moment that nothing foretells.
    parts.append(f"complete in about {left_s:.0f} s" if left_s else f"{progress['seconds']:.0f} s so far")
    return ", ".join(parts)
