"""OpenAI batch files: input validated before any line runs, and a journal of answers that is renamed when complete.

    IN.jsonl    {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {...}}
    OUT.jsonl   {"id": "...", "custom_id": "a", "response": {"status_code": 200, "body": {...}}, "error": null}

A recording is named as `service/api/batch/recordings.py` says. During a run, answers are appended to OUT.jsonl.part
line by line; after a kill, the next run continues after the last complete line.
Source: https://platform.openai.com/docs/guides/batch, https://platform.openai.com/docs/api-reference/batch/request-input
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from service.api.batch.lines import URLS, BadLine, BatchLine, numbered_lines, parse_line
from service.api.batch.recordings import AUDIO_URLS, check_recording
from service.api.http.lines import single_line
from service.errors import ServiceError
from service.storage.files import replace_synced, try_lock_descriptor
from service.storage.objects import PART_SUFFIX

MAX_LINE_BYTES = 256 * 1024 * 1024


class BatchFileError(ServiceError):
    """A batch file cannot be read, run or written."""

    def __init__(self, path: Path | str, line: int, reason: str) -> None:
        super().__init__(f"{path}{f', line {line}' if line else ''}: {reason}")
        self.path = path
        self.line = line  # 1-based; 0 for the whole file


def read_lines(path: Path) -> Iterator[BatchLine]:
    """Read a batch file line by line, skipping blank lines.

    Raises:
        BatchFileError: a line is malformed or repeats a custom_id.
    """
    seen: set[str] = set()
    try:
        with path.open("rb") as lines:
            for number, text in numbered_lines(lines, MAX_LINE_BYTES):
                line = _parse(path, number, text)
                if line.custom_id in seen:
                    raise BatchFileError(path, number, f"custom_id {line.custom_id!r} is on an earlier line too.")
                seen.add(line.custom_id)
                yield line
    except OSError as error:
        raise BatchFileError(path, 0, f"cannot be read: {error.strerror}.") from error


def _parse(path: Path, number: int, text: bytes | BadLine) -> BatchLine:
    try:
        line = parse_line(text, (*URLS, *AUDIO_URLS))
        if line.url in AUDIO_URLS:
            check_recording(line.body, path.parent)
        return line
    except BadLine as error:
        raise BatchFileError(path, number, error.message) from error


class Journal:
    """The answers so far, locked by one process at a time."""

    def __init__(self, path: Path) -> None:
        """Open the journal of an output file and read the ids of answered lines.

        Raises:
            BatchFileError: the output already exists, cannot be written, or is being written by another process.
        """
        self._path = path
        self._part = path.with_name(path.name + PART_SUFFIX)
        if path.exists():
            raise BatchFileError(path, 0, "exists already. Remove it or name another file.")
        try:
            self._file: BinaryIO = self._part.open("a+b")
            is_locked = try_lock_descriptor(self._file.fileno())
        except OSError as error:
            raise BatchFileError(path, 0, f"cannot be written: {error.strerror}.") from error
        if not is_locked:
            self._file.close()
            raise BatchFileError(path, 0, "is being written by another process.")
        self.done = self._whole_lines()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, answer: dict[str, Any]) -> None:
        """Append an answer; the next run drops a line truncated by a kill."""
        self._file.write(single_line(json.dumps(answer, ensure_ascii=False).encode()) + b"\n")
        self._file.flush()
        self.done.add(answer["custom_id"])

    def complete(self) -> None:
        """Rename the journal to the output file."""
        replace_synced(self._part, self._path)

    def _whole_lines(self) -> set[str]:
        self._file.seek(0)
        done, end = set(), 0
        for text in self._file:
            if not text.endswith(b"\n"):
                break  # truncated by a kill: run it again
            done.add(json.loads(text)["custom_id"])
            end += len(text)
        self._file.truncate(end)
        return done
