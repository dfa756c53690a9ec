"""The record of one batch: its state, counts and times, as it is stored and as clients see it.

Source: https://platform.openai.com/docs/api-reference/batch/object
"""

import json
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any

COMPLETION_WINDOW_S = 24 * 3600
# What may come after each status; what is not here is final. Only a record that is about to be finished is finalizing,
# and a cancellation that was reported to a client ends in no other way.
NEXT_STATUSES = {
    "validating": frozenset({"validating", "in_progress", "failed", "expired", "cancelling"}),
    "in_progress": frozenset({"in_progress", "finalizing", "expired", "cancelling"}),
    "finalizing": frozenset({"finalizing", "completed"}),
    "cancelling": frozenset({"cancelling", "cancelled"}),
}
MOMENTS = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
COUNTED = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens")


@dataclass
class Batch:
    """One batch. The process that has claimed it changes its record, and any process cancels it."""

    id: str
    owner: str
    endpoint: str
    input_file_id: str
    created_at: int  # Unix time in seconds
    metadata: dict[str, str] | None = None
    output_expires_after_s: int | None = None
    status: str = "validating"
    model: str | None = None
    errors: list[dict[str, Any]] = field(default_factory=list)
    total: int = 0
    completed: int = 0
    failed: int = 0
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))
    moments: dict[str, int] = field(default_factory=dict)  # Unix time by status
    output_file_id: str | None = None
    error_file_id: str | None = None

    @property
    def expires_at(self) -> int:
        """The end of the completion window."""
        return self.created_at + COMPLETION_WINDOW_S

    @property
    def is_open(self) -> bool:
        """Whether there is something left to do for it."""
        return self.status in NEXT_STATUSES

    @property
    def file_ids(self) -> set[str]:
        """The ids of its results."""
        return {file_id for file_id in (self.output_file_id, self.error_file_id) if file_id is not None}

    def enter(self, status: str) -> None:
        """Change the status, at this moment."""
        self.status = status
        self.moments.setdefault(status, int(time.time()))

    def may_become(self, later: "Batch") -> bool:
        """Return whether another state of the batch comes after this one, or is this one with other counts."""
        return later.status in NEXT_STATUSES.get(self.status, ())

    def copied(self) -> "Batch":
        """Return the batch as it is now."""
        return replace(self, tokens=dict(self.tokens), moments=dict(self.moments))

    def count(self, answer: dict[str, Any]) -> None:
        """Count one more answer."""
        if is_success(answer):
            self.completed += 1
            for name, num in tokens_of(answer["response"]["body"].get("usage") or {}).items():
                self.tokens[name] += num
        else:
            self.failed += 1

    def reset_counts(self) -> None:
        """Count from nothing again."""
        self.completed = self.failed = 0
        self.tokens = dict.fromkeys(COUNTED, 0)

    def to_json(self) -> bytes:
        """Return the record as it is stored."""
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_json(text: bytes) -> "Batch":
        """Return a stored record."""
        return Batch(**json.loads(text))

    def document(self) -> dict[str, Any]:
        """Return the batch as OpenAI has it."""
        tokens = self.tokens
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model,
            "errors": {"object": "list", "data": self.errors} if self.errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": "24h",
            "status": self.status,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            **{f"{status}_at": self.moments.get(status) for status in MOMENTS},
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "usage": {
                "input_tokens": tokens["input_tokens"],
                "input_tokens_details": {"cached_tokens": tokens["cached_tokens"]},
                "output_tokens": tokens["output_tokens"],
                "output_tokens_details": {"reasoning_tokens": tokens["reasoning_tokens"]},
                "total_tokens": tokens["input_tokens"] + tokens["output_tokens"],
            },
            "metadata": self.metadata,
        }


def is_success(answer: dict[str, Any]) -> bool:
    """Return whether a line of an output file is the answer of a request that succeeded."""
    return answer["response"] is not None and answer["response"]["status_code"] == 200


def tokens_of(usage: dict[str, Any]) -> dict[str, int]:
    """Return the token counts of an answer, under the names that responses have."""
    of_input = usage.get("input_tokens_details") or usage.get("prompt_tokens_details") or {}
    of_output = usage.get("output_tokens_details") or usage.get("completion_tokens_details") or {}
    return {
        "input_tokens": usage.get("input_tokens", usage.get("prompt_tokens", 0)),
        "cached_tokens": of_input.get("cached_tokens", 0),
        "output_tokens": usage.get("output_tokens", usage.get("completion_tokens", 0)),
        "reasoning_tokens": of_output.get("reasoning_tokens", 0),
    }
