"""Medians and ratios of raw starts, under flat keys."""

from typing import Any

from benchmarks import loading
from benchmarks.summary import median
from benchmarks.timed_starts import phase_seconds

Record = dict[str, Any]
STARTS = ("floor", "warm_disk", "warm_bucket", "cold_disk", "cold_bucket", "llamacpp", "transformers", "levanter")


def summarize(raw: dict[str, Any]) -> dict[str, float | str]:
    """Return the figures of the results file; those that need an absent peer are `absent`."""
    runs = {name: [r for r in raw["runs"] if r["contender"] == name] for name in STARTS}
    warm, cold = runs["warm_disk"] + runs["warm_bucket"], runs["cold_disk"] + runs["cold_bucket"]
    figures: dict[str, float | str] = {
        f"first_token_s_{name}": median(r["first_token_s"] for r in records)
        for name, records in runs.items()
        if records
    }
    figures["live_s"] = median(r["live_s"] for r in warm + cold)
    figures["live_s_max"] = max(r["live_s"] for r in warm + cold)
    figures["warm_ready_s"] = median(r["ready_s"] for r in runs["warm_disk"])
    figures["floor_jax_s"] = median(r["jax_s"] for r in runs["floor"])
    figures["floor_read_s"] = median(r["read_s"] for r in runs["floor"])
    figures["ratio_warm_ttft_vs_floor"] = _by_run(runs["warm_disk"], runs["floor"])
    for peer in ("levanter", "transformers", "llamacpp"):
        figures[f"ratio_warm_ttft_vs_{peer}"] = _by_run(runs["warm_disk"], runs[peer]) if runs[peer] else "absent"
    figures["warm_compiles"] = max(r["stats"]["compiles"] for r in warm)
    figures["warm_traces"] = max(r["stats"]["traces"] for r in warm)
    figures["warm_levanter_imports"] = max(len(r["stats"]["heavy_imports"]) for r in warm)
    figures["warm_bundle_hits"] = sum(r["stats"]["bundle_outcome"] == "hit" for r in warm) / len(warm)
    loads = [phase_seconds(r["stats"], "executables") for r in runs["warm_disk"]]
    compilations = [phase_seconds(r["stats"], "executables") for r in runs["cold_disk"]]
    figures["bundle_load_s"], figures["bundle_compile_s"] = median(loads), median(compilations)
    figures["ratio_bundle_load_vs_compile"] = median(loads) / median(compilations)
    figures |= loading.flat(raw["loading"])
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in figures.items()}


def _by_run(ours: list[Record], theirs: list[Record]) -> float:
    """Return the median ratio over runs; both sides of a ratio were measured within the same minutes."""
    by_run = {r["run"]: r["first_token_s"] for r in ours}
    return median(by_run[r["run"]] / r["first_token_s"] for r in theirs)
