"""The settings of how many requests a process holds, and for how long."""

from typing import Literal

from pydantic import Field

from service.settings.earlier import EarlierSettings


class WaitingSettings(EarlierSettings):
    """What clients' requests may take together, and how long each may take."""

    max_concurrent_requests: int = Field(
        default=64,
        ge=1,
        description="Requests held at the same time, running and waiting. Any further request gets a 429. One API key "
        "may hold all, until another was refused: then each has a share by its weight.",
    )
    max_queue_size: int | None = Field(
        default=None,
        ge=0,
        description="Requests that may wait for a slot or for memory, besides those that free slots take at once. Any "
        "further request gets a 429. Unset: as many as MAX_CONCURRENT_REQUESTS allows.",
    )
    max_queued_tokens: int | None = Field(
        default=None,
        ge=1,
        description="Prompt tokens of waiting requests. A request that would add more gets a 429, unless it is the "
        "only one that waits. Unset: no limit.",
    )
    max_open_body_bytes: int = Field(
        default=128 * 1024 * 1024,
        ge=1024,
        description="Bytes that the bodies of all open requests may have together; a body without a stated length "
        "counts as MAX_BODY_BYTES. Any further request gets a 429 with its body unread.",
    )
    queue_timeout: float | None = Field(
        default=None,
        gt=0,
        description="Seconds from a request's arrival until its first step begins. One that waits longer gets a 503 "
        "before anything is computed for it. Unset: REQUEST_TIMEOUT alone counts.",
    )
    early_requests: Literal["refuse", "wait"] = Field(
        default="refuse",
        description="Requests before the model is loaded: `refuse` answers 503 with Retry-After, `wait` queues them.",
    )
    request_timeout: float = Field(
        default=300, gt=0, description="Seconds allowed for one request, including the time it waits."
    )
