"""A figure of a measurement: throughput of all contenders, latency of Levserve."""

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.peers.start import NAMES

LABELS = NAMES | {"bare": "Levserve's bare steps"}
OURS, OTHERS, PALE = "#1b7f79", "#8d99ae", "#9fd3cf"


def plot(results: dict[str, Any], path: Path) -> None:
    """Plot throughput by concurrency above, and time to the first token and between tokens below."""
    waves = [wave["name"] for wave in results["waves"] if wave["name"] != "prefill"]
    figure = plt.figure(figsize=(11, 6.4), layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=[1.25, 1])
    axes = above.subplots(1, len(waves), sharey=True, squeeze=False)[0]
    for wave, axis in zip(waves, axes, strict=True):
        _plot_throughput(results, wave, axis)
    above.suptitle("Generated tokens/s, prefill included (longer is better)", fontsize=11)
    first, between = below.subplots(1, 2)
    loads = [*waves, "mixed"]
    _plot_latency(results, loads, "ttft", "Levserve: time to the first token (ms)", first)
    _plot_latency(results, loads, "itl", "Levserve: time between tokens (ms)", between)
    machine = results["machine"]
    note = f"{results['model_name']}, {machine['cores']} cores of {machine['processor']}, {results['began'][:10]}"
    figure.supxlabel(note, fontsize=8, color="#555555")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _plot_throughput(results: dict[str, Any], wave: str, axis: Axes) -> None:
    names = [name for name in LABELS if any(f"tokens_per_s_{name}_{w['name']}" in results for w in results["waves"])]
    values = [results.get(f"tokens_per_s_{name}_{wave}", 0.0) for name in names]
    colors = {"levserve": OURS, "engine": PALE, "bare": PALE}
    bars = axis.barh([LABELS[name] for name in names], values, color=[colors.get(name, OTHERS) for name in names])
    axis.bar_label(bars, [_number(value) for value in values], padding=3, fontsize=9)
    axis.set_title(f"{wave[1:]} at once", fontsize=10)
    axis.set_xlim(0, max(values) * 1.18)
    axis.invert_yaxis() if wave == "c1" else None
    _tidy(axis)
    axis.tick_params(axis="y", length=0)


def _plot_latency(results: dict[str, Any], loads: list[str], kind: str, title: str, axis: Axes) -> None:
    for offset, percent, color in ((-0.2, 50, OURS), (0.2, 99, PALE)):
        values = [results.get(f"{kind}_ms_p{percent}_{load}", 0.0) for load in loads]
        places = [i + offset for i in range(len(loads))]
        bars = axis.bar(places, values, width=0.38, color=color, label=f"p{percent}")
        axis.bar_label(bars, [_number(value) for value in values], padding=2, fontsize=8)
    axis.set_xticks(range(len(loads)), [c if c == "mixed" else f"{c[1:]} at once" for c in loads])
    axis.set_title(title, fontsize=11)
    axis.margins(y=0.15)
    axis.legend(frameon=False, fontsize=9, loc="upper left")
    _tidy(axis)


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def _tidy(axis: Axes) -> None:
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=9)
