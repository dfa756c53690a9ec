"""The service as its operators have it: a process, a port, log lines, an exit code."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from openai import OpenAI

START_TIMEOUT_S = 280
STOP_TIMEOUT_S = 30


def run_on_devices(module: str, *arguments: str, num_devices: int, timeout_s: float = START_TIMEOUT_S) -> Any:
    """Run a module of the tests in a process with so many CPU devices; return what it prints, as parsed JSON."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=Path(__file__).parents[1],
        env=os.environ | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={num_devices}"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


class ServiceProcess:
    """A `levserve serve` under way."""

    def __init__(self, module: str = "service", **settings: Any) -> None:
        environment = {key: value for key, value in os.environ.items() if key != "PYTEST_CURRENT_TEST"}
        given = {name.upper(): str(value) for name, value in settings.items()}
        environment |= {"HOST": "127.0.0.1", "PORT": "0", "LOG_FORMAT": "json", "PYTHONFAULTHANDLER": "1", **given}
        self.log: list[dict[str, Any]] = []
        self.raw: list[str] = []
        self._clients = contextlib.ExitStack()
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, "serve"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def url(self) -> str:
        """The address; waits until the port is open."""
        line = self.wait_for("listening", timeout_s=30)
        return f"http://127.0.0.1:{line['port']}"

    @property
    def exit_code(self) -> int:
        """Wait for the end of the process."""
        code = self.process.wait(STOP_TIMEOUT_S)
        self._reader.join(5)
        return code

    def kill(self) -> None:
        """End the process whatever it is doing."""
        self.process.kill()
        assert self.exit_code is not None

    def __enter__(self) -> "ServiceProcess":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._clients.close()
        state = "was running" if (code := self.process.poll()) is None else f"had ended with {code}"
        if "COVERAGE_PROCESS_CONFIG" in os.environ and error is None:  # a killed process would not say what it has run
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_TIMEOUT_S)
        self.kill()
        if error is not None:
            error.add_note(f"The service {state} and had printed:\n" + "\n".join(self.raw))

    def client(self, **options: Any) -> OpenAI:
        """Return the official client, which is closed with the process."""
        client = OpenAI(**{"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0} | options)
        return self._clients.enter_context(client)

    def wait_until_ready(self) -> "ServiceProcess":
        """Wait for the model, or fail with what the process printed."""
        self.wait_for("ready", timeout_s=START_TIMEOUT_S)
        assert httpx.get(f"{self.url}/health/ready").status_code == 200
        return self

    def wait_for(self, message: str, *, timeout_s: float, **fields: Any) -> dict[str, Any]:
        """Wait for a log line with a message and some fields."""
        wanted = {"message": message, **fields}
        give_up_at = time.monotonic() + timeout_s
        while time.monotonic() < give_up_at:
            is_over = not self._reader.is_alive()  # looked up first: what it has read last counts
            for line in list(self.log):
                if wanted.items() <= line.items():
                    return line
            assert not is_over, "\n".join(self.raw)
            time.sleep(0.01)
        raise AssertionError(f"no {message!r} within {timeout_s} s:\n" + "\n".join(self.raw))

    def stop(self, sig: int = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(sig)
        return self.exit_code

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._keep(line.rstrip("\n"))

    def _keep(self, line: str) -> None:
        self.raw.append(line)
        try:
            self.log.append(json.loads(line))
        except ValueError:
            self.log.append({"message": line, "is_plain": True})


@contextmanager
def running_service(**settings: Any) -> Iterator[ServiceProcess]:
    """Start a service, wait until it is ready, and kill it at the end."""
    with ServiceProcess(**settings) as service:
        yield service.wait_until_ready()
