"""Facts of a request's log line: its end user, and the time until its tokens."""

from collections.abc import Sequence
from typing import Any

from service.observability.clock import Clock

MAX_LOGGED_CHARS = 128


def timing_facts(clocks: Sequence[Clock], num_tokens: int) -> dict[str, float]:
    """Return the times of a request in seconds, as far as it got.

    Args:
        clocks: of its sequences, at least one.
        num_tokens: of all its sequences together.
    """
    submitted_s = min(clock.submitted_s for clock in clocks)
    scheduled_s = [clock.scheduled_s for clock in clocks if clock.scheduled_s is not None]
    spans_s = [
        (clock.first_token_s, clock.last_token_s)
        for clock in clocks
        if clock.first_token_s is not None and clock.last_token_s is not None
    ]
    facts = {}
    if scheduled_s:
        facts["queue_s"] = max(scheduled_s) - submitted_s
    if spans_s:
        facts["time_to_first_token_s"] = min(first for first, _ in spans_s) - submitted_s
    if num_tokens > len(spans_s) > 0:
        facts["time_per_output_token_s"] = sum(last - first for first, last in spans_s) / (num_tokens - len(spans_s))
    return {name: round(value, 6) for name, value in facts.items()}


def log_user(log_fields: dict[str, Any], user: str | None) -> None:
    """Add the client's own user to a request's log line, if it names one."""
    if user is not None:
        log_fields["user"] = "".join(c if c.isprintable() else "?" for c in user[:MAX_LOGGED_CHARS])
