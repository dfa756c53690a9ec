"""OpenAI batch files: checked whole before any line runs, answered line by line into a journal, renamed when complete.

    IN.jsonl    {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {...}}
    OUT.jsonl   {"id": "...", "custom_id": "a", "response": {"status_code": 200, "body": {...}}, "error": null}

While a run is under way its answers lie in OUT.jsonl.part, one whole line each; a run that was killed goes on behind
the last whole line.
Source: https://platform.openai.com/docs/guides/batch, https://platform.openai.com/docs/api-reference/batch/request-input
"""

import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from service.errors import ServiceError

URLS = ("/v1/chat/completions", "/v1/completions")


class BatchError(ServiceError):
    """A batch file cannot be read, run or written."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{path}{f', line {line}' if line else ''}: {reason}")
        self.path = path
        self.line = line  # from 1 on; 0 for the file as a whole


@dataclass(frozen=True, slots=True)
class BatchLine:
    """One request of a batch file."""

    custom_id: str
    url: str
    body: dict[str, Any]


def read_lines(path: Path) -> Iterator[BatchLine]:
    """Read a batch file line by line; blank lines are passed over.

    Raises:
        BatchError: a line is malformed, or uses a custom_id a second time; names the line.
    """
    seen: set[str] = set()
    try:
        with path.open("rb") as lines:
            for number, text in enumerate(lines, start=1):
                if text.strip():
                    line = _parse(path, number, text)
                    if line.custom_id in seen:
                        raise BatchError(path, number, f"custom_id {line.custom_id!r} stands on an earlier line too.")
                    seen.add(line.custom_id)
                    yield line
    except OSError as error:
        raise BatchError(path, 0, f"cannot be read: {error.strerror}.") from error


def _parse(path: Path, number: int, text: bytes) -> BatchLine:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BatchError(path, number, "is no JSON.") from error
    if not isinstance(value, dict) or not isinstance(value.get("custom_id"), str) or not value["custom_id"]:
        raise BatchError(path, number, "needs a custom_id.")
    if value.get("method") != "POST" or value.get("url") not in URLS:
        raise BatchError(path, number, f"needs method POST and one of the urls {', '.join(URLS)}.")
    if not isinstance(value.get("body"), dict):
        raise BatchError(path, number, "needs a body, an object.")
    if value["body"].get("stream"):
        raise BatchError(path, number, "asks for a stream, which a batch has not.")
    return BatchLine(value["custom_id"], value["url"], value["body"])


class Journal:
    """The answers so far; one process at a time writes it."""

    def __init__(self, path: Path) -> None:
        """Open the journal of an output file, and read which lines it has.

        Raises:
            BatchError: the output is complete already, or another process is at it.
        """
        self._path = path
        self._part = path.with_name(path.name + ".part")
        if path.exists():
            raise BatchError(path, 0, "exists already. Remove it or name another file.")
        try:
            self._file: BinaryIO = self._part.open("a+b")
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BatchError(path, 0, "is being written by another process.") from error
        except OSError as error:
            raise BatchError(path, 0, f"cannot be written: {error.strerror}.") from error
        self.done = self._whole_lines()

    def write(self, answer: dict[str, Any]) -> None:
        """Add an answer; it is whole in the journal, or not there at all."""
        self._file.write(json.dumps(answer, ensure_ascii=False).encode() + b"\n")
        self._file.flush()
        self.done.add(answer["custom_id"])

    def complete(self) -> None:
        """Give the output its name."""
        os.fsync(self._file.fileno())
        self._part.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)

    def close(self) -> None:
        """Let another process go on."""
        self._file.close()

    def _whole_lines(self) -> set[str]:
        self._file.seek(0)
        done, end = set(), 0
        for text in self._file:
            if not text.endswith(b"\n"):
                break  # a kill cut this line: it runs again
            done.add(json.loads(text)["custom_id"])
            end += len(text)
        self._file.truncate(end)
        return done
