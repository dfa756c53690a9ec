"""Medians and ratios of raw runs.

A ratio is the median over runs; both sides of each run's ratio were measured within the same minute.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from benchmarks.peers.start import SERVING_PEERS

Record = dict[str, Any]


def median(values: Iterable[float]) -> float:
    """Return the median."""
    return float(np.median(list(values)))


def percentile(values: Iterable[float], percent: float) -> float:
    """Return a percentile, `percent` from 0 to 100."""
    return float(np.percentile(list(values), percent))


def summarize(raw: dict[str, Any]) -> dict[str, float]:
    """Return the figures of the results file under flat keys."""
    return {
        name: round(value, 4)
        for figures in (_throughput(raw["runs"]), _ratios(raw["runs"]), _latency(raw["runs"]), _experiments(raw))
        for name, value in figures.items()
    }


def _throughput(runs: list[Record]) -> dict[str, float]:
    figures = {}
    for name, wave in sorted({(r["contender"], r["wave"]) for r in runs}):
        chosen = [r for r in runs if (r["contender"], r["wave"]) == (name, wave)]
        if wave == "prefill":
            figures[f"prefill_tokens_per_s_{name}"] = median(r["prompt_tokens"] / r["seconds"] for r in chosen)
        else:
            figures[f"tokens_per_s_{name}_{wave}"] = median(r["tokens_per_s"] for r in chosen)
    return figures


def _ratios(runs: list[Record]) -> dict[str, float]:
    figures = {}
    waves = {r["wave"] for r in runs} - {"prefill"}
    for wave in sorted(waves):
        for peer in SERVING_PEERS:
            figures |= _ratio(f"ratio_vs_{peer}_{wave}", runs, wave, peer, ours=_speed, theirs=_speed)
        figures |= _ratio(f"ratio_vs_bare_step_{wave}", runs, wave, "bare", ours=_speed, theirs=_speed)
        figures |= _ratio(f"ratio_vs_bare_decode_{wave}", runs, wave, "bare", ours=_full_speed, theirs=_decode_speed)
        figures |= _ratio(f"ratio_vs_engine_{wave}", runs, wave, "engine", ours=_speed, theirs=_speed)
        share = [r["prefill_s"] / r["seconds"] for r in runs if (r["contender"], r["wave"]) == ("bare", wave)]
        figures[f"prefill_share_of_bare_{wave}"] = median(share)
        of_read = [r["share_of_read_speed"] for r in runs if (r["contender"], r["wave"]) == ("bare", wave)]
        if all(of_read):
            figures[f"share_of_read_speed_{wave}"] = median(of_read)
    return figures | _ratio("ratio_prefill_vs_llamacpp", runs, "prefill", "llamacpp", ours=_speed, theirs=_speed)


def _ratio(
    key: str,
    runs: list[Record],
    wave: str,
    peer: str,
    *,
    ours: Callable[[Record], float | None],
    theirs: Callable[[Record], float | None],
) -> dict[str, float]:
    """Return the median over runs of Levserve's figure divided by the peer's, if both exist."""
    chosen = [r for r in runs if r["wave"] == wave]
    of_ours = {r["run"]: ours(r) for r in chosen if r["contender"] == "levserve"}
    of_theirs = {r["run"]: theirs(r) for r in chosen if r["contender"] == peer}
    pairs = ((of_ours[run], value) for run, value in of_theirs.items())
    ratios = [above / below for above, below in pairs if above and below]
    return {key: median(ratios)} if ratios else {}


def _speed(record: Record) -> float:
    return record["tokens_per_s"]


def _full_speed(record: Record) -> float | None:
    """Return tokens per second while all sequences were decoding."""
    return record["full_tokens"] / record["full_s"] if record["full_s"] else None


def _decode_speed(record: Record) -> float | None:
    """Return tokens per second of the bare decode steps; each generates one token per sequence."""
    tokens_each = record["num_tokens"] / (record["decode_steps"] + 1)
    return tokens_each * record["decode_steps"] / record["decode_s"] if record["decode_steps"] else None


def _latency(runs: list[Record]) -> dict[str, float]:
    figures = {}
    for wave in sorted({r["wave"] for r in runs} - {"prefill"}):
        ours = [r for r in runs if (r["contender"], r["wave"]) == ("levserve", wave)]
        figures |= latency_figures(f"_{wave}", ours)
    return figures


def latency_figures(suffix: str, records: list[Record]) -> dict[str, float]:
    """Return p50 and p99 of the times to the first token and between tokens in milliseconds, over all requests."""
    first = [1000 * s for r in records for s in r["first_token_s"]]
    gaps = [1000 * s for r in records for s in r["gap_s"]]
    return {
        f"{name}_ms_p{percent}{suffix}": percentile(values, percent)
        for name, values in (("ttft", first), ("itl", gaps))
        for percent in (50, 99)
        if values
    }


def _experiments(raw: dict[str, Any]) -> dict[str, float]:
    late, shared, mixed = raw["late"], raw["shared_prefix"], raw["mixed"]
    return {
        "ratio_late_ttft": median(r["late_s"] / (r["alone_s"] + 3 * r["step_s"]) for r in late),
        "late_ttft_by_alone": median(r["late_s"] / r["alone_s"] for r in late),
        "late_wait_in_steps": median((r["late_s"] - r["alone_s"]) / r["step_s"] for r in late),
        "late_ttft_ms": median(1000 * r["late_s"] for r in late),
        "late_alone_ttft_ms": median(1000 * r["alone_s"] for r in late),
        "late_step_ms": median(1000 * r["step_s"] for r in late),
        "ratio_shared_prefix_ttft": median(r["second_s"] / r["first_s"] for r in shared),
        "shared_prefix_first_ttft_ms": median(1000 * r["first_s"] for r in shared),
        "host_ms_per_step_64": median(r["cpu_ms"] for r in raw["host"]),
        "host_wall_ms_per_step_64": median(r["wall_ms"] for r in raw["host"]),
        **constrained_figures(raw),
        "tokens_per_s_mixed": median(r["num_tokens"] / r["seconds"] for r in mixed),
    } | latency_figures("_mixed", mixed)


def constrained_figures(raw: dict[str, Any]) -> dict[str, float]:
    """Return the ratios of structured output to free text."""
    return {
        "ratio_constrained": median(r["free_s"] / r["constrained_s"] for r in raw["constrained"]),
        "ratio_new_schema": median(
            new / free
            for r in raw["new_schema"]
            for new, free in zip(r["mates_tokens_new_schema"], r["mates_tokens_free"], strict=True)
        ),
    }
