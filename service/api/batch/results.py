"""The files that a batch leaves: outputs of requests that succeeded, and errors of all others.

A request that has no answer when its batch ends is named in the file of errors: every custom_id is in one of the two.
"""

import json
import tempfile
import uuid
from typing import Any, BinaryIO

from service.api.batch.answer_log import AnswerLog
from service.api.batch.batches import Batches, folder_of, input_name
from service.api.batch.files import RESULTS
from service.api.batch.lines import BadLine, numbered_lines, parse_line
from service.api.batch.names import result_file_id
from service.api.batch.records import Batch, is_success
from service.api.http.lines import single_line

UNANSWERED = {
    "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
    "cancelled": ("batch_cancelled", "This request was not executed, since its batch was cancelled."),
}


def write_results(batches: Batches, batch: Batch, outcome: str, max_line_bytes: int) -> None:
    """Write the files of a batch and note their ids, which are new: they are the batch's once its record names them.

    Args:
        batches: the batch's place.
        batch: a batch that will not be worked on again.
        outcome: its last status.
        max_line_bytes: the longest line of its input.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        answered: set[str] = set()
        for answer in AnswerLog(batches.store, folder_of(batch.owner, batch.id)).load():
            if answer["custom_id"] not in answered:
                answered.add(answer["custom_id"])
                _write(output if is_success(answer) else errors, answer)
        if outcome in UNANSWERED and (source := batches.store.open(input_name(batch))) is not None:
            with source:
                _write_unanswered(source, errors, answered, outcome, max_line_bytes)
        batch.output_file_id = _store(batches, batch, output, "output")
        batch.error_file_id = _store(batches, batch, errors, "error")


def _write_unanswered(source: BinaryIO, errors: BinaryIO, answered: set[str], outcome: str, max_bytes: int) -> None:
    code, message = UNANSWERED[outcome]
    for _, text in numbered_lines(source, max_bytes):
        try:
            custom_id = parse_line(text).custom_id
        except BadLine:  # the batch ended before its lines were checked
            continue
        if custom_id not in answered:
            error = {"code": code, "message": message}
            request_id = f"batch_req_{uuid.uuid4().hex}"
            _write(errors, {"id": request_id, "custom_id": custom_id, "response": None, "error": error})


def _write(file: BinaryIO, answer: dict[str, Any]) -> None:
    file.write(single_line(json.dumps(answer, ensure_ascii=False).encode()) + b"\n")


def _store(batches: Batches, batch: Batch, file: BinaryIO, kind: str) -> str | None:
    if not (num_bytes := file.tell()):
        return None
    return batches.files.add(
        batch.owner,
        file,
        num_bytes,
        filename=f"{batch.id}_{kind}.jsonl",
        purpose=RESULTS,
        expires_after_s=batch.output_expires_after_s,
        file_id=result_file_id(batch.id),
    ).id
