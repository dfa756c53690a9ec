"""Contenders: servers over HTTP and workers over a pipe, each in its own process, behind the same two methods."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from benchmarks.load import Answer, Call, completion_body, send_all
from benchmarks.workload import Outcome

ROOT = Path(__file__).parents[1]
START_TIMEOUT_S = 600
Prompt = list[int] | str


class Contender(Protocol):
    """A program that continues prompts."""

    facts: dict[str, Any]  # versions and settings
    pid: int

    def run(self, prompts: list[list[int]], output_tokens: int) -> Outcome:
        """Continue all prompts concurrently and return the tokens with their times."""
        ...

    def close(self) -> None:
        """End the process."""
        ...


class Worker:
    """A process that runs `peers/worker.py`."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        self._log = log
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | dict(environment or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("w"),
            text=True,
        )
        self.pid = self._process.pid
        self.facts = self._answer()

    def ask(self, name: str, prompts: list[list[int]], output_tokens: int) -> dict[str, Any]:
        """Run one of the worker's tasks."""
        assert self._process.stdin is not None
        task = {"ask": name, "prompts": prompts, "output_tokens": output_tokens}
        print(json.dumps(task), file=self._process.stdin, flush=True)
        return self._answer()

    def run(self, prompts: list[list[int]], output_tokens: int) -> Outcome:
        """Continue all prompts concurrently."""
        result = self.ask("generate", prompts, output_tokens)
        if times := result.get("token_s"):
            outcome = Outcome.of_times(0.0, [0.0] * len(prompts), times)
        else:
            outcome = Outcome(result["seconds"], sum(len(token_ids) for token_ids in result["token_ids"]))
        outcome.token_ids = result["token_ids"]
        return outcome

    def close(self) -> None:
        """End the process."""
        end(self._process)

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker ended: {self._log.read_text().strip()[-600:]}")
        return json.loads(line)


class HttpServer:
    """A process that serves OpenAI's completions."""

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        log: Path,
        *,
        model: str,
        ready_path: str,
        environment: Mapping[str, str] | None = None,
        as_prompt: Callable[[list[int]], Prompt] = lambda token_ids: token_ids,
    ) -> None:
        """Start the server and wait until it is ready.

        Args:
            command: the command line of the server.
            port: the port that it listens on.
            log: the file for its output.
            model: the name of the served model.
            ready_path: a route that returns 200 once the server is ready.
            environment: variables to add.
            as_prompt: converts token ids to the type of prompt that the server accepts.
        """
        self.facts: dict[str, Any] = {}
        self.model = model
        self.port = port
        self._as_prompt = as_prompt
        self._log = log
        self._process = subprocess.Popen(
            command, cwd=ROOT, env=os.environ | dict(environment or {}), stdout=log.open("w"), stderr=subprocess.STDOUT
        )
        self.pid = self._process.pid
        try:
            self._wait(f"http://127.0.0.1:{port}{ready_path}")
        except BaseException:  # an interrupted benchmark too
            end(self._process)
            raise

    def call(self, prompt: list[int], output_tokens: int, delay_s: float = 0.0) -> Call:
        """Return a request for this server."""
        return Call(completion_body(self.model, self._as_prompt(prompt), output_tokens), delay_s)

    def send(self, calls: list[Call]) -> tuple[float, list[Answer]]:
        """Send requests and wait for all answers."""
        return asyncio.run(send_all("127.0.0.1", self.port, calls))

    def run(self, prompts: list[list[int]], output_tokens: int) -> Outcome:
        """Continue all prompts concurrently."""
        started_s, answers = self.send([self.call(prompt, output_tokens) for prompt in prompts])
        return outcome_of(started_s, answers, output_tokens)

    def answer(self, prompt: list[int], output_tokens: int, **fields: Any) -> dict[str, Any]:
        """Return one complete answer, without streaming."""
        body = completion_body(self.model, self._as_prompt(prompt), output_tokens) | fields
        body = {name: value for name, value in body.items() if name not in ("stream", "stream_options")}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=START_TIMEOUT_S) as response:
            return json.load(response)

    def close(self) -> None:
        """End the process."""
        end(self._process)

    def _wait(self, url: str) -> None:
        give_up_at = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < give_up_at and self._process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
                return
            time.sleep(0.2)
        raise RuntimeError(f"the server did not start: {self._log.read_text().strip()[-600:]}")


def outcome_of(started_s: float, answers: list[Answer], output_tokens: int) -> Outcome:
    """Return the outcome of streamed answers; each must have all its tokens."""
    counts = [answer.usage.get("completion_tokens", output_tokens) for answer in answers]
    assert set(counts) == {output_tokens}, f"{counts} tokens came, {output_tokens} each were asked for"
    # The last two events carry the finish reason and the usage, and no token.
    outcome = Outcome.of_times(
        started_s, [a.sent_s for a in answers], [a.event_s[:-2] or a.event_s[:1] for a in answers]
    )
    outcome.num_tokens = sum(counts)
    return outcome


def levserve(checkpoint: Path, folder: Path, settings: Mapping[str, str]) -> HttpServer:
    """Start Levserve."""
    port = free_port()
    return HttpServer(
        [sys.executable, "-m", "service", "serve"],
        port,
        folder / "levserve.log",
        model="bench",
        ready_path="/health/ready",
        environment=service_environment(checkpoint, folder, settings) | {"HOST": "127.0.0.1", "PORT": str(port)},
    )


def service_environment(checkpoint: Path, folder: Path, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of Levserve, and of its engine alone, with huge pages as in `make serve`.

    It is ready once every executable is there, so that none is compiled while something is timed.
    """
    fixed = {"MODEL_URI": str(checkpoint), "MODEL_NAME": "bench", "LOCAL_MODEL_CACHE": str(folder / "cache")}
    return (
        fixed
        | {"READY_WHEN": "complete", "LOG_FORMAT": "json", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
        | dict(settings)
    )


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def end(process: "subprocess.Popen[Any]") -> None:
    """Terminate a process, and kill it if it does not end."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
