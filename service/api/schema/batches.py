"""The bodies and queries of /v1/files and /v1/batches.

Source: https://platform.openai.com/docs/api-reference/files, https://platform.openai.com/docs/api-reference/batch
"""

from typing import Literal

from pydantic import Field

from service.api.schema.generation import MAX_NAME_CHARS
from service.api.schema.metadata import Metadata
from service.api.schema.wire import WireObject

MAX_FILES_OF_A_PAGE, MAX_BATCHES_OF_A_PAGE = 10_000, 100
MIN_EXPIRY_S, MAX_EXPIRY_S = 3600, 30 * 24 * 3600


class ExpiresAfter(WireObject):
    """When a file ends."""

    anchor: Literal["created_at"]
    """What the seconds are counted from."""
    seconds: int = Field(ge=MIN_EXPIRY_S, le=MAX_EXPIRY_S)
    """From one hour to 30 days."""


class FileFields(WireObject):
    """The form of POST /v1/files besides the file itself."""

    purpose: Literal["batch"]
    """What a file is for: `batch`; in a list also `batch_output`."""
    expires_after: ExpiresAfter | None = None
    """When the file ends; without it, after 30 days."""


class FileQuery(WireObject):
    """The query of GET /v1/files."""

    purpose: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    """What a file is for: `batch`; in a list also `batch_output`."""
    limit: int = Field(default=MAX_FILES_OF_A_PAGE, ge=1, le=MAX_FILES_OF_A_PAGE)
    """Objects of a page."""
    order: Literal["asc", "desc"] = "desc"
    """By the time of creation."""
    after: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    """The id of the last object of the page before."""


class BatchRequest(WireObject):
    """The body of POST /v1/batches."""

    input_file_id: str = Field(max_length=MAX_NAME_CHARS)
    """An uploaded file, a request a line: `custom_id`, `method`, `url` and `body`."""
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"]
    """The route of every request of the batch."""
    completion_window: Literal["24h"]
    """How long the batch may take."""
    metadata: Metadata | None = None
    """The client's own notes, which the batch carries."""
    output_expires_after: ExpiresAfter | None = None
    """When the results end; without it, after 30 days."""


class BatchQuery(WireObject):
    """The query of GET /v1/batches."""

    limit: int = Field(default=20, ge=1, le=MAX_BATCHES_OF_A_PAGE)
    """Objects of a page."""
    after: str | None = Field(default=None, max_length=MAX_NAME_CHARS)
    """The id of the last object of the page before."""
