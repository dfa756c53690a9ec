"""Judge a revision beside the one that serves: correct answers, time to first token, and a short load.

    python scripts/deploy/judge.py CANDIDATE_URL STABLE_URL VERDICT_FILE [flag of levserve smoke]...

The verdict is `good`, or the reason why not. It is a file, because the step of a build that moves traffic runs in
another image than this one.
"""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

# A revision is too slow from this multiple of the old time to first token, and this many seconds more: medians of a few
# requests of a fast service differ by much, of a slow one by little.
SLOWER_FACTOR, SLOWER_S = 1.5, 0.25
NUM_REQUESTS = 10
NUM_CLIENTS = 8  # of the load, each with as many requests one after another


class Bad(Exception):
    """Why a revision takes no more traffic."""


def main() -> None:
    """Write the verdict."""
    candidate, stable, verdict, *flags = sys.argv[1:]
    try:
        judge(candidate, stable, flags)
        said = "good"
    except Bad as reason:
        said = str(reason)
    Path(verdict).write_text(said)
    print(f"verdict: {said}")


def judge(candidate: str, stable: str, flags: list[str]) -> None:
    """Compare a revision with the stable one, then under load.

    Raises:
        Bad: it answers wrong, slower, or not under load.
    """
    new_s = first_token_s(smoke(candidate, NUM_REQUESTS, flags))
    old_s = first_token_s(smoke(stable, NUM_REQUESTS, flags, must_be_green=False))
    print(f"first token: {shown(new_s)}, of the stable revision {shown(old_s)}")
    if new_s is not None and old_s is not None and new_s > max(old_s * SLOWER_FACTOR, old_s + SLOWER_S):
        raise Bad(f"the first token takes {shown(new_s)}, with the stable revision {shown(old_s)}")
    with ThreadPoolExecutor(NUM_CLIENTS) as pool:
        load = [pool.submit(smoke, candidate, NUM_REQUESTS, flags) for _ in range(NUM_CLIENTS)]
        failures = [failure for client in load if (failure := client.exception()) is not None]
    if failures:
        raise Bad(f"{len(failures)} of {NUM_CLIENTS} clients at once failed: {failures[0]}")


def smoke(url: str, num_requests: int, flags: list[str], *, must_be_green: bool = True) -> dict[str, Any]:
    """Run the smoke test and return its report.

    Raises:
        Bad: a check failed.
    """
    command = ["levserve", "smoke", url, "--json", f"--requests={num_requests}", *flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    report = json.loads(done.stdout) if done.stdout.startswith("{") else {"checks": []}
    if done.returncode and must_be_green:
        failed = [check["name"] for check in report["checks"] if check["status"] == "failed"]
        raise Bad(f"levserve smoke failed: {', '.join(failed) or f'exit code {done.returncode}'}")
    return report


def first_token_s(report: dict[str, Any]) -> float | None:
    """Return the median time to the first token, or None if it was not measured."""
    facts = [check.get("facts", {}) for check in report["checks"]]
    return next((fact["first_token_seconds_p50"] for fact in facts if "first_token_seconds_p50" in fact), None)


def shown(value: float | None) -> str:
    """Return a time as text."""
    return "unknown" if value is None else f"{value:.3f} s"


if __name__ == "__main__":
    main()
