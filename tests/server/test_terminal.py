"""A start on a terminal: one moving line, then the model, its addresses and a command that works as printed."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from service.observability.progress import CLEAR_LINE
from service.server.terminal import command, progress_text

PROGRESS = {
    "percent": 44,
    "estimated_seconds_left": 3.2,
    "seconds": 2.4,
    "bytes_done": 4_600_000,
    "bytes_total": 12_000_000,
    "executables_done": 7,
    "executables_total": 24,
}
UNKNOWN = {"percent": None, "estimated_seconds_left": None, "bytes_total": 0, "bytes_done": 0}
START_TIMEOUT_S = 200


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "44 %, weights 4.6 MB of 12.0 MB, executables 7 of 24, complete in about 3 s"),
        ({"bytes_done": 12_000_000}, "44 %, executables 7 of 24, complete in about 3 s"),
        ({"executables_done": 24}, "44 %, weights 4.6 MB of 12.0 MB, complete in about 3 s"),
        (UNKNOWN, "executables 7 of 24, 2 s so far"),
        (UNKNOWN | {"executables_done": 0, "executables_total": 0}, "2 s so far"),
    ],
)
def test_the_progress_line_says_what_is_known_and_under_way(changes, line):
    assert progress_text(PROGRESS | changes) == line


def test_the_command_suits_the_model_and_survives_the_shell():
    lines = command(
        "http://localhost:8080", "it's/a model", ("completions", {"prompt": "Once upon a time"}), needs_key=True
    )
    assert lines[0].startswith("curl http://localhost:8080/v1/completions ")
    assert '"Authorization: Bearer $API_KEY"' in lines[1]
    echoed = subprocess.run(
        ["bash", "-c", "curl() { printf '%s\\n' \"${@: -1}\"; }\n" + "\n".join(lines)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert json.loads(echoed.stdout) == {"model": "it's/a model", "prompt": "Once upon a time"}
    chat = command("http://x", "m", ("chat/completions", {}), needs_key=False)
    assert len(chat) == 2
    assert "chat/completions" in chat[0]


class TerminalService:
    """A service whose output is a terminal."""

    def __init__(self, **settings):
        self.text = ""
        given = {name.upper(): value for name, value in settings.items()}
        environment = os.environ | {"HOST": "127.0.0.1", "PORT": "0", "COLUMNS": "100"} | given
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "service", "serve"], env=environment, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.process.kill()
        self.process.wait()
        self._reader.join(10)
        os.close(self._ours)

    def wait_for(self, pattern):
        end_s = time.monotonic() + START_TIMEOUT_S
        while (found := re.search(pattern, self.text)) is None:
            assert time.monotonic() < end_s, self.text
            assert self._reader.is_alive(), self.text
            time.sleep(0.05)
        return found

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(30)
        self._reader.join(10)
        return code

    def _read(self):
        while True:
            try:
                part = os.read(self._ours, 65536)
            except OSError:  # the other side is closed
                return
            if not part:
                return
            self.text += part.decode()


def settled(text):
    """The lines that stay on the screen."""
    kept = (line.rpartition(CLEAR_LINE)[2].rstrip("\r") for line in text.split("\n"))
    return [line for line in kept if line]


def test_a_start_on_a_terminal_shows_progress_then_addresses_and_a_command(cold_start):
    with TerminalService() as service:
        port = service.wait_for(r"Levserve is starting; http://localhost:(\d+) shows the start")[1]
        service.wait_for(r"levserve-demo is ready after \d+\.\d s, with a context of \d+ tokens\.")
        service.wait_for(r"-d '\{.*\}'\r\n")
        lines = settled(service.text)
        at = next(i for i, line in enumerate(lines) if "curl" in line)
        ran = subprocess.run(["bash", "-c", "\n".join(lines[at : at + 2])], capture_output=True, text=True, check=True)
        assert json.loads(ran.stdout)["choices"][0]["message"]["content"]
        assert lines[:2] == [f"Levserve is starting; http://localhost:{port} shows the start", lines[1]]
        assert lines[2] == f"  Chat  http://localhost:{port}/"
        assert f"{CLEAR_LINE}Loading: " in service.text
        service.wait_for(r"\d\d:\d\d:\d\d POST /v1/chat/completions 200 \d+\.\d\d s \d+\+\d+ tokens levserve-demo")
        assert service.stop() == 0
        assert not re.search(r"start: |planned|listening|bundle", service.text)
        assert all(len(line) < 100 for line in service.text.split(CLEAR_LINE) if line.startswith("Loading"))


def test_with_debug_a_start_on_a_terminal_keeps_its_log_lines(cold_start):
    with TerminalService(log_level="DEBUG") as service:
        service.wait_for(r"INFO +listening")
        service.wait_for(r"INFO +start: ")
        assert "Levserve is starting" not in service.text
