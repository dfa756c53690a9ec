"""Report of a run as JSON, and as a Markdown table with a line for each bound of the project."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.quantization.starts import OWN, WIDE
from benchmarks.quantization.ways import AVX2_FLOAT32, AVX2_INT8, FLOAT32, INT8, INT8_KV, LLAMA_FLOAT32, LLAMA_Q8
from benchmarks.report import markdown_table

PAGE = Path(__file__).parents[2] / "docs" / "figures" / "xeon.md"
WAVES = {"c1": "1 at once", "c8": "8 at once", "c32": "32 at once", "prefill": "prefill"}
# Least ratio of tokens per second, by wave.
SPEED_BOUNDS: Mapping[tuple[str, str], Mapping[str, float]] = {
    (INT8, FLOAT32): {"c1": 1.5, "c8": 1.8, "c32": 1.6, "prefill": 1.3},
    (INT8, LLAMA_Q8): {"c1": 1.0, "c8": 1.2, "c32": 1.2},
    (INT8, LLAMA_FLOAT32): {"c1": 1.5, "c8": 1.8, "c32": 1.7},
    (FLOAT32, LLAMA_FLOAT32): {"c1": 0.95, "c8": 0.95, "c32": 1.05},
    (AVX2_INT8, AVX2_FLOAT32): {"c1": 1.0, "c8": 1.0, "c32": 1.0, "prefill": 1.0},
}
PERPLEXITY_BOUNDS = {"int8": 1.01, "fp8": 1.02, "int8 KV": 1.01, "fp8 KV": 1.02, "int8, AVX2 alone": 1.01}
MOST_MEMORY = 0.35  # of weights and KV, int8 over float32
MOST_START = 1.6  # over its floor


class Line(NamedTuple):
    """A figure beside its bound."""

    name: str
    measured: float
    sign: str  # ≥ or ≤
    bound: float

    @property
    def cells(self) -> list[str]:
        """The line of the table."""
        is_met = self.measured >= self.bound if self.sign == "≥" else self.measured <= self.bound
        digits = f"{self.measured:.4f}" if self.name.startswith("perplexity") else f"{self.measured:.2f}"
        return [self.name, digits, f"{self.sign} {self.bound:g}", "met" if is_met else "**missed**"]


def markdown(results: dict[str, Any]) -> str:
    """Return the tables as Markdown."""
    machine, parts = results["machine"], results["parts"]
    speed = _joined(parts.get("speed", {}), parts.get("others", {}))
    disturbance = median([run["disturbance"] for run in speed.get("runs", ())] or [0])
    lines = [*_speed_lines(speed), *_other_lines(parts)]
    rows = [line.cells for line in lines]
    rows += [
        [name, "passed" if is_met else "failed", "passes", "met" if is_met else "**missed**"]
        for name, is_met in parts.get("checks", {}).items()
        if name != "is_complete"
    ]
    made = [
        f"{machine['processor']}, {machine['cores']} cores; medians. `{results['command']}`, {results['began'][:10]}; "
        f"other processes used {disturbance:.2f} cores meanwhile.",
        markdown_table(["figure", "measured", "bound", ""], rows),
        *_plain_tables(speed, parts.get("memory", {})),
    ]
    made += [f"Absent: {name}: {reason}" for name, reason in speed.get("absent", {}).items()]
    return "\n\n".join(made) + "\n"


def _joined(*parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the runs and facts of several groups of contenders as those of one."""
    found: dict[str, Any] = {"runs": [], "absent": {}, "resident_bytes": {}}
    for part in parts:
        found["runs"] += part.get("runs", ())
        found["absent"] |= part.get("absent", {})
        found["resident_bytes"] |= part.get("resident_bytes", {})
    return found


def _medians(speed: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], list[float]] = {}
    for run in speed.get("runs", ()):
        found.setdefault((run["contender"], run["wave"]), []).append(run["tokens_per_s"])
    return {key: median(values) for key, values in found.items()}


def _speed_lines(speed: Mapping[str, Any]) -> Iterator[Line]:
    medians = _medians(speed)
    for (ours, theirs), bounds in SPEED_BOUNDS.items():
        for wave, bound in bounds.items():
            if (theirs, wave) in medians:
                ratio = medians[ours, wave] / medians[theirs, wave]
                yield Line(f"{ours} ÷ {theirs}, tokens/s, {WAVES[wave]}", ratio, "≥", bound)


def _other_lines(parts: Mapping[str, Any]) -> Iterator[Line]:
    for name, bound in PERPLEXITY_BOUNDS.items():
        if figures := parts.get("quality", {}).get(name):
            yield Line(f"perplexity of the demo model, {name} ÷ float32", figures["perplexity_ratio"], "≤", bound)
    for name in (OWN, WIDE):
        if records := parts.get("starts", {}).get(name):
            warm, floor = (median(record[key] for record in records) for key in ("warm_s", "floor_s"))
            yield Line(f"warm start in int8 ÷ floor, a checkpoint {name}", warm / floor, "≤", MOST_START)
    if memory := parts.get("memory"):
        ours, theirs = (memory[way]["weights_bytes"] + memory[way]["kv_bytes"] for way in (INT8_KV, FLOAT32))
        yield Line("memory of weights and KV, int8 ÷ float32", ours / theirs, "≤", MOST_MEMORY)


def _plain_tables(speed: Mapping[str, Any], memory: Mapping[str, Any]) -> Iterator[str]:
    medians = _medians(speed)
    waves = [wave for wave in WAVES if any(wave == found for _, found in medians)]
    if waves:
        names = dict.fromkeys(name for name, _ in medians)
        rows = [[name, *(f"{medians[name, wave]:.1f}" for wave in waves)] for name in names]
        yield markdown_table(["tokens/s", *(WAVES[wave] for wave in waves)], rows)
    if memory:
        resident = speed.get("resident_bytes", {})
        rows = [
            [
                way,
                *(f"{planned[kind] / 1e6:,.0f}" for kind in ("weights_bytes", "kv_bytes")),
                f"{resident[way] / 1e6:,.0f}" if way in resident else "–",
            ]
            for way, planned in memory.items()
            if way != "is_complete"
        ]
        yield markdown_table(["memory, MB", "weights", "KV", "resident, all of the process"], rows)
