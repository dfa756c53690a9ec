"""Reports of `make bench-start` as JSON, as Markdown tables and as a figure."""

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.loading import Case, table
from benchmarks.report import markdown_table, write_files
from benchmarks.start_summary import STARTS

ROOT = Path(__file__).parents[1]
NAMES = {
    "floor": "floor: import jax, find the device, read the bytes",
    "warm_disk": "Levserve, warm, from disk",
    "warm_bucket": "Levserve, warm, from the bucket",
    "cold_disk": "Levserve, no bundle, from disk",
    "cold_bucket": "Levserve, no bundle, from the bucket",
    "llamacpp": "llama.cpp, no HTTP",
    "transformers": "transformers, no HTTP",
    "levanter": "Levanter's server",
}
# The targets of the start; docs/figures/epyc.md shows them.
TARGETS: dict[str, tuple[str, str, float]] = {
    "live_s": ("process start to /health/live, s", "≤", 1.0),
    "ratio_warm_ttft_vs_floor": ("warm start to first token ÷ floor", "≤", 1.6),
    "ratio_warm_ttft_vs_levanter": ("÷ Levanter's server", "<", 0.125),
    "ratio_warm_ttft_vs_transformers": ("÷ transformers", "<", 1.0),
    "warm_compiles": ("XLA compilations on a warm start", "=", 0),
    "warm_traces": ("traces on a warm start", "=", 0),
    "warm_levanter_imports": ("heavy packages imported on a warm start", "=", 0),
    "ratio_loader_vs_bare": ("loader's bytes/s ÷ a bare parallel GET's", "≥", 0.85),
    "ratio_loader_vs_gcsfs": ("÷ gcsfs", "≥", 1.2),
    "ratio_loader_vs_transfer_manager": ("÷ transfer_manager", "≥", 1.2),
    "peak_rss_above_weights_bytes": ("peak memory above the weights, bytes", "≤", 512 * 1024 * 1024),
    "ratio_bundle_load_vs_compile": ("loading all executables ÷ compiling them", "<", 0.1),
}
OURS, OTHERS, PALE = "#1b7f79", "#8d99ae", "#9fd3cf"


def write_report(results: dict[str, Any], folder: Path) -> None:
    """Write the three files and print the tables."""
    write_files("start", results, markdown(results), folder)
    _plot(results, folder / "start.png")


def markdown(results: dict[str, Any]) -> str:
    """Return the tables as Markdown."""
    machine = results["machine"]
    starts = [
        [NAMES[name], _number(results[f"first_token_s_{name}"])]
        for name in STARTS
        if f"first_token_s_{name}" in results
    ]
    targets = [
        [label, _number(results.get(key)), f"{sign} {target:g}"] for key, (label, sign, target) in TARGETS.items()
    ]
    head = "| checkpoint | loader | MB/s | CPU s | ours / this | peak above weights, MiB |\n|---|---|---|---|---|---|"
    rows = [row for text, runs in results["loading"].items() for row in table(Case.parse(text), runs)]
    parts = [
        f"{machine['processor']}, {machine['cores']} cores; {results['model_name']}; medians. "
        f"`{results['command']}`, {results['began'][:10]}, {results['took_minutes']} minutes.",
        markdown_table(["process start to first token", "s"], starts),
        "\n".join([head, *rows]),
        markdown_table(["figure", "measured", "target"], targets),
    ]
    parts += [f"Absent: {name}: {reason}" for name, reason in results["absent"].items()]
    return "\n\n".join(parts) + "\n"


def _plot(results: dict[str, Any], path: Path) -> None:
    figure = plt.figure(figsize=(11, 6.4), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=[1.1, 1])
    axis = above.add_subplot()
    names = [name for name in STARTS if f"first_token_s_{name}" in results]
    values = [results[f"first_token_s_{name}"] for name in names]
    colors = [OURS if name.startswith("warm") else PALE if name.startswith("cold") else OTHERS for name in names]
    _bars(axis, [NAMES[name] for name in names], values, colors, "Process start to first token, s (shorter is better)")
    cases = results["loading"]
    for place, (text, runs) in enumerate(cases.items(), 1):
        speeds = [sum(r["bytes_per_s"] for r in found) / len(found) / 1e6 for found in runs.values()]
        colors = [OURS if name == "levserve" else OTHERS for name in runs]
        axis = below.add_subplot(1, len(cases), place)
        _bars(axis, list(runs), speeds, colors, f"{Case.parse(text)}: MB/s from a bucket on this machine")
    note = f"{results['machine']['cores']} cores of {results['machine']['processor']}, {results['began'][:10]}"
    figure.supxlabel(note, fontsize=8, color="#555555")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _bars(axis: Axes, labels: list[str], values: list[float], colors: list[str], title: str) -> None:
    bars = axis.barh(labels, values, color=colors)
    axis.bar_label(bars, [_number(value) for value in values], padding=3, fontsize=9)
    axis.set_title(title, fontsize=10)
    axis.set_xlim(0, max(values) * 1.15)
    axis.invert_yaxis()
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=9)


def _number(value: float | str | None) -> str:
    if value is None or isinstance(value, str):
        return value or "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
