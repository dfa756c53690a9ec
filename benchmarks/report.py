"""Reports of results as JSON, as Markdown tables and as a figure."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.start import NAMES
from benchmarks.plot import plot
from benchmarks.summary import median

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGE = ROOT / "docs" / "figures" / "epyc.md"
# The targets of the engine; the page of the machine shows them.
TARGETS = {
    "ratio_vs_levanter": ("served tokens/s ÷ Levanter's server's", {"c1": 20.0, "c8": 12.0, "c32": 12.0}),
    "ratio_vs_levanter_32": ("÷ Levanter's server's, made for 32 sequences", {}),
    "ratio_vs_transformers": ("served tokens/s ÷ transformers'", {"c1": 1.5, "c8": 1.4, "c32": 1.3}),
    "ratio_vs_llamacpp": ("served tokens/s ÷ llama.cpp's", {"c1": 0.9, "c8": 0.9, "c32": 1.0}),
    "ratio_vs_bare_step": ("served tokens/s ÷ the bare compiled steps'", {"c1": 0.9, "c8": 0.9, "c32": 0.9}),
    "share_of_read_speed": ("share of the memory's read speed that bare decode steps reach", {}),
}
SINGLE_TARGETS = {
    "ratio_prefill_vs_llamacpp": ("prefill tokens/s ÷ llama.cpp's", "≥", 0.9),
    "ratio_late_ttft": ("time to first token, late with 16 streams running ÷ (alone + 3 decode steps)", "≤", 1.0),
    "ratio_shared_prefix_ttft": ("time to first token, 1,000 tokens shared ÷ the first request's", "≤", 0.2),
    "ratio_constrained": ("tokens/s of 32 streams held to a JSON schema ÷ free ones", "≥", 0.97),
    "ratio_new_schema": (
        "tokens of 31 streams in the second after a request with a new schema ÷ a free one",
        "≥",
        0.95,
    ),
    "host_ms_per_step_64": ("engine thread's time per decode step of 64 sequences, ms", "≤", 1.5),
}


def write_report(results: dict[str, Any], folder: Path) -> None:
    """Write the three files and print the tables."""
    write_files("serving", results, markdown(results), folder)
    plot(results, folder / "serving.png")


def write_files(name: str, results: dict[str, Any], text: str, folder: Path, page: Path = PAGE) -> None:
    """Write results as JSON and Markdown and print the latter; those of the repository go on a page of docs/ too."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n")
    (folder / f"{name}.md").write_text(text)
    if folder.resolve() == RESULTS:
        fill(page, name, text)
    print(f"\n{text}\nwritten: {folder}/{name}.*")


def fill(path: Path, name: str, text: str) -> None:
    """Replace the text between the markers of this name, if the page has them."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    page = path.read_text()
    if begin in page and end in page:
        before, rest = page.split(begin, 1)
        path.write_text(f"{before}{begin}{text}{end}{rest.split(end, 1)[1]}")


def markdown(results: dict[str, Any]) -> str:
    """Return the tables as Markdown."""
    machine = results["machine"]
    waves = [wave for wave in results["waves"] if wave["name"] != "prefill"]
    shape = f"{waves[0]['prompt_tokens']} prompt tokens and {waves[0]['output_tokens']} generated tokens"
    disturbance = median(run["disturbance"] for run in results["runs"])
    parts = [
        f"{machine['processor']}, {machine['cores']} cores; {results['model_name']}, {shape} each, greedy; medians. "
        f"`{results['command']}`, {results['began'][:10]}; other processes used {disturbance:.2f} cores meanwhile.",
        _throughput_table(results, [wave["name"] for wave in waves]),
        _latency_table(results, [*(wave["name"] for wave in waves), "mixed"]),
        _target_table(results, [wave["name"] for wave in waves]),
    ]
    parts += [f"Absent: {NAMES[name]}: {reason}" for name, reason in results["absent"].items()]
    return "\n\n".join(parts) + "\n"


def _throughput_table(results: dict[str, Any], waves: Sequence[str]) -> str:
    rows = []
    for name, label in {**NAMES, "bare": "Levserve's bare compiled steps"}.items():
        if name in results["absent"]:
            rows.append([label, *["absent"] * (len(waves) + 1)])
        elif f"tokens_per_s_{name}_{waves[0]}" in results:
            speeds = [_number(results.get(f"tokens_per_s_{name}_{wave}")) for wave in waves]
            rows.append([label, *speeds, _number(results.get(f"prefill_tokens_per_s_{name}"))])
    head = ["generated tokens/s", *(f"{wave[1:]} at once" for wave in waves), "prefill tokens/s"]
    return markdown_table(head, rows)


def _latency_table(results: dict[str, Any], waves: Sequence[str]) -> str:
    kinds = [f"{name}_ms_p{percent}" for name in ("ttft", "itl") for percent in (50, 99)]
    rows = [
        [
            f"{wave[1:]} at once" if wave != "mixed" else "mixed",
            *(_number(results.get(f"{kind}_{wave}")) for kind in kinds),
        ]
        for wave in waves
    ]
    head = ["Levserve over HTTP, ms", "first token p50", "p99", "between tokens p50", "p99"]
    return markdown_table(head, rows)


def _target_table(results: dict[str, Any], waves: Sequence[str]) -> str:
    rows = []
    for key, (label, targets) in TARGETS.items():
        for wave in waves:
            value = results.get(f"{key}_{wave}")
            rows.append([f"{label}, {wave[1:]} at once", _number(value), f"≥ {targets[wave]:g}" if targets else ""])
    for key, (label, sign, target) in SINGLE_TARGETS.items():
        rows.append([label, _number(results.get(key)), f"{sign} {target:g}"])
    return markdown_table(["ratio", "measured", "target"], rows)


def markdown_table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table with a text column followed by columns of figures."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
