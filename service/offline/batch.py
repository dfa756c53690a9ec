"""`levserve batch`: every line of a file through the API and engine that serve, with the device kept full.

Answers come in the order in which they are done. A line that the API refuses is answered with that refusal; a failure
of the engine ends the run, and the next one goes on behind it.
"""

import asyncio
import itertools
import json
import logging
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from service.errors import EngineStopped
from service.offline.batch_file import BatchError, BatchLine, Journal, read_lines

logger = logging.getLogger(__name__)

LOG_INTERVAL_S = 10.0
Api = Callable[..., Any]  # an ASGI app


@dataclass
class Tally:
    """How far a run is."""

    num_lines: int
    num_done: int = 0
    num_refused: int = 0
    num_tokens: int = 0
    began_s: float = field(default_factory=time.monotonic)
    num_earlier: int = 0  # lines that an earlier run has answered

    @property
    def tokens_per_second(self) -> float:
        """The mean rate of this run."""
        return self.num_tokens / max(time.monotonic() - self.began_s, 1e-3)

    def count(self, answer: dict[str, Any]) -> None:
        """Take one more answer into account."""
        self.num_done += 1
        self.num_refused += answer["response"]["status_code"] != 200
        usage = answer["response"]["body"].get("usage") or {}
        self.num_tokens += usage.get("completion_tokens", 0)

    def __str__(self) -> str:
        share = (self.num_done + self.num_earlier) / max(self.num_lines, 1)
        bar = "█" * int(30 * share) + "·" * (30 - int(30 * share))
        refused = f", {self.num_refused} refused" if self.num_refused else ""
        done = f"{self.num_done + self.num_earlier} of {self.num_lines} lines{refused}"
        return f"{bar} {done}, {self.num_tokens} tokens, {self.tokens_per_second:.0f} tokens/s"


async def run_batch(api: Api, source: Path, target: Path, *, concurrency: int, out: TextIO = sys.stdout) -> Tally:
    """Answer every line of a batch file that has no answer yet.

    Args:
        api: the ASGI app that answers.
        source: the batch file.
        target: the file of answers; it appears when it is complete.
        concurrency: requests under way at once.
        out: where a progress bar is drawn if that is a terminal.

    Raises:
        BatchError: a file is malformed, or cannot be read or written; nothing has run then.
        EngineStopped: the engine failed; what was answered is kept.
    """
    ids = {line.custom_id for line in read_lines(source)}
    journal = Journal(target)
    try:
        if strangers := journal.done - ids:
            raise BatchError(target, 0, f"has answers to other lines, such as {min(strangers)!r}. Name another file.")
        tally = Tally(len(ids), num_earlier=len(journal.done))
        todo = (line for line in read_lines(source) if line.custom_id not in journal.done)
        ticker = asyncio.create_task(_show(tally, out))
        try:
            await _answer_all(api, todo, journal, tally, concurrency)
        finally:
            ticker.cancel()
        journal.complete()
        return tally
    finally:
        journal.close()


async def _answer_all(api: Api, todo: Iterator[BatchLine], journal: Journal, tally: Tally, concurrency: int) -> None:
    under_way: set[asyncio.Task[dict[str, Any]]] = set()
    try:
        while True:
            fresh = itertools.islice(todo, concurrency - len(under_way))
            under_way |= {asyncio.create_task(_answer(api, line)) for line in fresh}
            if not under_way:
                return
            done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                answer = task.result()
                journal.write(answer)
                tally.count(answer)
    finally:
        for task in under_way:
            task.cancel()


async def _answer(api: Api, line: BatchLine) -> dict[str, Any]:
    status, body = await call(api, line.url, line.body)
    if status >= 500:
        raise EngineStopped(f"the engine failed at {line.custom_id!r}: {body['error']['message']}")
    request_id = f"req_{uuid.uuid4().hex}"
    response = {"status_code": status, "request_id": request_id, "body": body}
    return {"id": f"batch_{request_id}", "custom_id": line.custom_id, "response": response, "error": None}


async def call(api: Api, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Post JSON to an ASGI app in this process and return status and body.

    Source: https://asgi.readthedocs.io/en/latest/specs/www.html
    """
    content = json.dumps(body).encode()
    messages = iter([{"type": "http.request", "body": content, "more_body": False}])
    over = asyncio.Event()
    status, parts = 500, []

    async def receive() -> dict[str, Any]:
        if (message := next(messages, None)) is not None:
            return message
        await over.wait()  # nobody disconnects here before the answer is whole
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        else:
            parts.append(message.get("body", b""))

    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    scope = {"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http"}
    scope |= {"path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "headers": headers}
    try:
        await api(scope | {"client": None, "server": None}, receive, send)
    finally:
        over.set()
    return status, json.loads(b"".join(parts))


async def _show(tally: Tally, out: TextIO) -> None:
    try:
        while True:
            if out.isatty():
                out.write(f"\r\x1b[2K{tally}")
                out.flush()
            else:
                facts = {"lines_done": tally.num_done + tally.num_earlier, "lines": tally.num_lines}
                rate = round(tally.tokens_per_second, 1)
                logger.info("batch", extra={**facts, "tokens": tally.num_tokens, "tokens_per_second": rate})
            await asyncio.sleep(0.2 if out.isatty() else LOG_INTERVAL_S)
    finally:
        if out.isatty():
            out.write(f"\r\x1b[2K{tally}\n")
            out.flush()
