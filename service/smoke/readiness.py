"""Waiting for a service that may be starting: no answer at first, then 503 with its progress, then 200."""

import time
from collections.abc import Callable
from typing import Any

from service.smoke.client import Client, json_of
from service.smoke.expectations import expect_status
from service.smoke.failures import CheckFailed, Reply, Unreachable
from service.smoke.report import Finding

READY_PATH = "/health/ready"
TRY_TIMEOUT_S = 60.0  # a platform may hold a request until it has started an instance
PAUSE_S = (0.25, 2.0)  # the first and the longest pause
REPORT_INTERVAL_S = 10.0
# A new URL or permission takes a moment to propagate to all front ends.
SETTLE_S = 10.0
# A process opens its port within a second; where nothing listens after this time, none is starting.
REFUSED_S = 5.0
NEVER_READY = frozenset({401, 403, 404})


def wait_until_ready(
    client: Client, timeout_s: float, report: Callable[[str], None], *, waits_for_port: bool = True
) -> Finding:
    """Poll until the service is ready.

    Args:
        client: a client for the service.
        timeout_s: patience for the start.
        report: shows progress.
        waits_for_port: whether connections may be refused for that long too, as before a deployment has an instance.

    Raises:
        CheckFailed: the service refuses, is not Levserve, or is not ready in time.
    """
    began_s = time.monotonic()
    reported_s, pause_s, tries = began_s, PAUSE_S[0], 0
    while True:
        tries += 1
        left_s = timeout_s - (time.monotonic() - began_s)
        reply, state, is_refused = _poll(client, max(0.5, min(left_s, TRY_TIMEOUT_S)))
        now_s = time.monotonic()
        if is_refused and not waits_for_port and now_s - began_s > min(REFUSED_S, timeout_s):
            raise CheckFailed(f"{state}: nothing listens at {client.url}. Start the service, or wait with --timeout")
        if reply is not None and reply.status == 200:
            return _finding(reply, now_s - began_s, tries)
        if reply is not None and reply.status in NEVER_READY and now_s - began_s > min(SETTLE_S, timeout_s / 2):
            expect_status(reply, 200)
        if now_s + pause_s - began_s > timeout_s:
            raise CheckFailed(f"not ready after {timeout_s:g} s and {tries} tries; at last: {state}", reply)
        if tries == 1 or now_s - reported_s > REPORT_INTERVAL_S:
            report(f"waiting for {client.url}: {state} ({now_s - began_s:.0f} s)")
            reported_s = now_s
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, PAUSE_S[1])


def _poll(client: Client, timeout_s: float) -> tuple[Reply | None, str, bool]:
    try:
        reply = client.get(READY_PATH, timeout_s=timeout_s)
    except Unreachable as error:
        if error.is_final:
            raise
        return None, error.message, error.is_refused
    return reply, _state(reply), False


def _state(reply: Reply) -> str:
    """Describe the progress of the start."""
    if reply.status != 503 or not reply.is_json:
        return f"{reply.request} answers {reply.status}"
    progress = json_of(reply)
    if not isinstance(progress, dict) or "phase" not in progress:
        return f"{reply.request} answers 503"
    parts = [f"starting, {progress['phase']}"]
    for name, unit in (("bytes", "bytes"), ("executables", "executables")):
        if progress.get(f"{name}_total"):
            parts.append(f"{progress.get(f'{name}_done', 0):,} of {progress[f'{name}_total']:,} {unit}")
    return ", ".join(parts)


def _finding(reply: Reply, waited_s: float, tries: int) -> Finding:
    document = json_of(reply)
    if not isinstance(document, dict) or document.get("status") not in ("answering", "complete"):
        raise CheckFailed("answers 200 without saying that it is ready: is this the address of Levserve?", reply)
    detail = "at once" if tries == 1 and waited_s < PAUSE_S[1] else f"after {waited_s:.1f} s and {tries} tries"
    facts: dict[str, Any] = {"waited_seconds": round(waited_s, 3), "tries": tries}
    start_s, phases = document.get("seconds"), document.get("phases_done_seconds")
    if isinstance(start_s, int | float):
        facts["start_seconds"] = start_s
        detail += f"; its start took {start_s:.1f} s"
    if isinstance(phases, dict) and all(isinstance(seconds, int | float) for seconds in phases.values()):
        facts["phases_seconds"] = phases
        longest = sorted(phases.items(), key=lambda item: -item[1])[:3]
        detail += "".join(f", {name} {seconds:.1f}" for name, seconds in longest)
    return Finding(detail, facts)
