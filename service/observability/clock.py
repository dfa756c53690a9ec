"""Timestamps of a request in an engine or encoder, and its queue deadline."""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(slots=True)
class Clock:
    """When a request reached each stage, in seconds of `time.perf_counter`; written by the device thread only."""

    submitted_s: float
    scheduled_s: float | None = None  # its first step was dispatched
    first_token_s: float | None = None
    last_token_s: float | None = None  # the latest so far


class QueueDeadline(NamedTuple):
    """How long a request may wait for its first step."""

    end_s: float  # on the clock of `time.perf_counter`
    limit_s: float  # the total wait, for the error message
