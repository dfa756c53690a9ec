"""Files and batches.

Source: https://platform.openai.com/docs/api-reference/files/object, https://platform.openai.com/docs/api-reference/batch/object
"""

from typing import Literal, TypedDict


class FileObject(TypedDict):
    """An uploaded file, or a result of a batch."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    """Unix time in seconds."""
    expires_at: int
    filename: str
    purpose: Literal["batch", "batch_output"]
    status: Literal["processed"]
    status_details: None


class FileList(TypedDict):
    """A page of files."""

    object: Literal["list"]
    data: list[FileObject]
    first_id: str | None
    last_id: str | None
    """The `after` of the next page."""
    has_more: bool


class DeletedFile(TypedDict):
    """The answer of DELETE /v1/files/{file_id}."""

    id: str
    object: Literal["file"]
    deleted: Literal[True]


class BatchError(TypedDict):
    """What is wrong with an input file."""

    code: str
    message: str
    param: str | None
    line: int | None
    """From 1 on; null for the file as a whole."""


class BatchErrors(TypedDict):
    """Everything that is wrong with an input file."""

    object: Literal["list"]
    data: list[BatchError]


class RequestCounts(TypedDict):
    """The requests of a batch."""

    total: int
    completed: int
    failed: int
    """Those that were refused, or failed."""


class BatchCachedTokens(TypedDict):
    """Where the tokens of prompts came from."""

    cached_tokens: int


class BatchReasoningTokens(TypedDict):
    """What answers consist of."""

    reasoning_tokens: int


class BatchUsage(TypedDict):
    """Token counts of the answers so far."""

    input_tokens: int
    input_tokens_details: BatchCachedTokens
    output_tokens: int
    output_tokens_details: BatchReasoningTokens
    total_tokens: int


class BatchObject(TypedDict):
    """A batch; moments are Unix times in seconds, null before they come."""

    id: str
    object: Literal["batch"]
    endpoint: str
    model: str | None
    """Of the first request, once the file was checked."""
    errors: BatchErrors | None
    """Of a batch that failed."""
    input_file_id: str
    completion_window: Literal["24h"]
    status: Literal[
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
    ]
    output_file_id: str | None
    """The answers of requests that succeeded, in the order in which they completed; null if there are none."""
    error_file_id: str | None
    """All other requests: those that were refused or failed, and those without an answer."""
    created_at: int
    expires_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: RequestCounts
    usage: BatchUsage
    metadata: dict[str, str] | None


class BatchList(TypedDict):
    """A page of batches."""

    object: Literal["list"]
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    """The `after` of the next page."""
    has_more: bool
