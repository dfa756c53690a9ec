"""Answering of a batch file with the same API and engine as a server, at full concurrency.

Answers are written in order of completion. A line that the API refuses is answered with its error; an engine failure
ends the run, and the next run continues from there.
"""

import asyncio
import logging
import time
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from starlette.types import ASGIApp

from service.api.batch.records import is_success, tokens_of
from service.api.batch.requests import answers, as_background, client_of
from service.api.http.keys import OPEN_OWNER
from service.observability.progress import progress_line
from service.offline.batch_file import BatchFileError, Journal, read_lines

logger = logging.getLogger(__name__)

LOG_INTERVAL_S = 10.0
# No client is waiting, so a line may take long; the limit only ends hung ones.
LINE_TIMEOUT_S = 86_400.0
BAR_CHARS = 30


@dataclass
class Tally:
    """The counters of a run."""

    num_lines: int
    num_done: int = 0  # in this run
    num_refused: int = 0
    num_tokens: int = 0  # of completions
    began_s: float = field(default_factory=time.monotonic)
    num_earlier: int = 0  # lines that earlier runs answered, or other processes
    num_before: int = 0  # of these, before this run began

    @property
    def tokens_per_second(self) -> float:
        """Mean rate of this run."""
        return self.num_tokens / max(time.monotonic() - self.began_s, 1e-3)

    def count(self, answer: dict[str, Any]) -> None:
        self.num_done += 1
        self.num_refused += not is_success(answer)
        if answer["response"] is not None:
            self.num_tokens += tokens_of(answer["response"]["body"].get("usage") or {})["output_tokens"]

    @property
    def seconds_left(self) -> float | None:
        """How long the other lines take at the rate of this run; None before its first answer."""
        num_done = self.num_done + self.num_earlier
        elapsed_s = time.monotonic() - self.began_s
        rate = (num_done - self.num_before) / max(elapsed_s, 1e-3)
        return (self.num_lines - num_done) / rate if rate > 0 else None

    def __str__(self) -> str:
        num_done = self.num_done + self.num_earlier
        num_filled = BAR_CHARS * num_done // max(self.num_lines, 1)
        bar = "█" * num_filled + "·" * (BAR_CHARS - num_filled)
        refused = f", {self.num_refused} refused" if self.num_refused else ""
        lines = f"{num_done} of {self.num_lines} lines{refused}"
        left = "" if (left_s := self.seconds_left) is None else f", {int(left_s) // 60}:{int(left_s) % 60:02d} left"
        return f"{bar} {lines}, {self.num_tokens} tokens, {self.tokens_per_second:.0f} tokens/s{left}"


async def run_batch(api: ASGIApp, source: Path, target: Path, *, concurrency: int, out: TextIO | None = None) -> Tally:
    """Answer every line of a batch file that has no answer yet.

    Args:
        api: the ASGI app.
        source: the batch file.
        target: the output file, which appears when it is complete.
        concurrency: the number of concurrent requests.
        out: the stream for progress; stdout by default.

    Raises:
        BatchFileError: a file is malformed, or cannot be read or written; no line was run.
        EngineStopped: the engine failed; earlier answers are saved.
    """
    ids = {line.custom_id for line in read_lines(source)}
    with Journal(target) as journal:
        if unknown := journal.done - ids:
            raise BatchFileError(target, 0, f"has answers to other lines, such as {min(unknown)!r}. Name another file.")
        tally = Tally(len(ids), num_earlier=len(journal.done), num_before=len(journal.done))
        todo = (line for line in read_lines(source) if line.custom_id not in journal.done)
        slots = asyncio.Semaphore(concurrency)
        background = as_background(api, OPEN_OWNER, lambda: LINE_TIMEOUT_S)

        def read_file(name: str) -> bytes:
            return (source.parent / name).read_bytes()

        async with client_of(background) as client, aclosing(answers(client, todo, slots, read_file)) as answered:
            with shown(tally, out):
                async for answer in answered:
                    journal.write(answer)
                    tally.count(answer)
        journal.complete()
        return tally


def shown(tally: Tally, out: TextIO | None = None) -> AbstractContextManager[None]:
    """Show a tally while the body runs: as a line on a terminal, otherwise in the log."""
    return progress_line(
        lambda: str(tally), lambda: _log(tally), log_interval_s=LOG_INTERVAL_S, out=out, keeps_last_line=True
    )


def _log(tally: Tally) -> None:
    fields = {"lines_done": tally.num_done + tally.num_earlier, "lines": tally.num_lines}
    rate = round(tally.tokens_per_second, 1)
    logger.info("batch", extra={**fields, "tokens": tally.num_tokens, "tokens_per_second": rate})
