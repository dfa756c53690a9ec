"""The moments of one request on its way through an engine or an encoder, and until when it may wait for the first."""

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(slots=True)
class Clock:
    """When a request passed its stages, in seconds of `time.perf_counter`; the device thread writes, others read."""

    submitted_s: float
    scheduled_s: float | None = None  # its first step was dispatched
    first_token_s: float | None = None
    last_token_s: float | None = None  # the latest so far


class QueueDeadline(NamedTuple):
    """Until when a request may wait for its first step."""

    end_s: float  # on the clock of `time.perf_counter`
    limit_s: float  # of the whole wait, for the error
