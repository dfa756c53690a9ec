"""The moments of one request on its way through the engine."""

from dataclasses import dataclass


@dataclass(slots=True)
class Clock:
    """When a request passed its stages, in seconds of `time.perf_counter`; the device thread writes, others read."""

    submitted_s: float
    scheduled_s: float | None = None  # its first step was dispatched
    first_token_s: float | None = None
    last_token_s: float | None = None  # the latest so far
