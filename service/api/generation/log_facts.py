"""Facts of a request's log line: the time until its tokens."""

from collections.abc import Sequence

from service.observability.clock import Clock


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
