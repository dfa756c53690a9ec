"""Tables of texts per second, and of Levserve's ratios to its peers: medians over runs of the ratio within each run."""

import statistics
from typing import Any

from benchmarks.report import markdown_table

NAMES = {
    "served": "Levserve over HTTP, with its tokenizer",
    "encoder": "Levserve's encoder, no HTTP",
    "bare": "its bare compiled steps",
    "torch": "sentence-transformers on torch, best batches",
    "onnxruntime": "onnxruntime, best batches",
    "windows": "torch, padded batches of 10 ms windows",
}
# The least that the encoder's texts per second divided by the other's should be.
LATENCY = "t16c1"  # the measurement of one text of 16 tokens on an idle service
TARGETS = {"bare": "≥ 0.9", "torch": "≥ 1.2", "onnxruntime": "≥ 1.0", "windows": "≥ 2 (mixed)"}
LEAST = {"bare": 0.9, "torch": 1.2, "onnxruntime": 1.0, "windows": 2.0}


def markdown(results: dict[str, Any]) -> str:
    """Return the tables as Markdown."""
    machine, runs, names = results["machine"], results["runs"], results["cells"]
    disturbance = statistics.median(record["disturbance"] for record in runs)
    parts = [
        f"{machine['processor']}, {machine['cores']} cores; float32, the same threads for all; medians. "
        f"`{results['command']}`, {results['began'][:10]}; other processes used {disturbance:.2f} cores meanwhile. "
        "t16c8: texts of 16 tokens from 8 clients, each with one text at a time."
    ]
    for model in dict.fromkeys(record["model"] for record in runs):
        of_model = [record for record in runs if record["model"] == model]
        speeds = [[label, *(_number(_speed(of_model, task, cell)) for cell in names)] for task, label in NAMES.items()]
        ratios = [
            [f"÷ {NAMES[task]} ({target})", *(_number(_ratio(of_model, task, cell)) for cell in names)]
            for task, target in TARGETS.items()
        ]
        over_http = [_number(_ratio(of_model, "bare", cell, of="served")) for cell in names]
        ratios.append([f"over HTTP ÷ {NAMES['bare']}, the client on the same cores", *over_http])
        ratios.append(
            ["the same by CPU time of the service's process (≥ 0.9)", *map(_number, _cpu_ratios(of_model, names))]
        )
        parts.append(markdown_table([f"{model}, texts/s", *names], [*speeds, *ratios]))
        parts += [*_latency(model, of_model), *_start(model, results["starts"])]
        parts.append(_verdict(model, of_model, names))
    parts += [f"Absent: {name}: {reason}" for name, reason in results["absent"].items()]
    return "\n\n".join(parts) + "\n"


def _verdict(model: str, runs: list[dict[str, Any]], cells: list[str]) -> str:
    """Name the bounds that are missed, by cell."""
    figures = {(task, cell): _ratio(runs, task, cell) for task in LEAST for cell in cells}
    missed = [
        f"÷ {task} at {cell}: {_number(figure)} (≥ {LEAST[task]})"
        for (task, cell), figure in figures.items()
        if figure is not None and figure < LEAST[task]
    ]
    missed += [
        f"served ÷ bare by CPU time at {cell}: {_number(figure)} (≥ {LEAST['bare']})"
        for cell, figure in zip(cells, _cpu_ratios(runs, cells), strict=True)
        if figure is not None and figure < LEAST["bare"]
    ]
    return f"{model}: {'missed: ' + '; '.join(missed) if missed else 'every bound of texts per second is kept'}."


def _cpu_ratios(runs: list[dict[str, Any]], cells: list[str]) -> list[float | None]:
    """Return CPU time of a text's bare steps ÷ that of the service's process for a text over HTTP, of each cell."""
    return [_ratio(runs, "served", cell, of="bare", figure="cpu_s_per_text") for cell in cells]


def _latency(model: str, runs: list[dict[str, Any]]) -> list[str]:
    """Compare the latency of one text over HTTP with the time of its bare steps."""
    found = {(record["task"], record["run"]): record for record in runs if record["cell"] == LATENCY}
    pairs = [
        (record["p50_s"], 1 / found["bare", run]["texts_per_s"])
        for (task, run), record in found.items()
        if task == "served"
    ]
    if not pairs:
        return []
    ratio, latency_s = (statistics.median(values) for values in zip(*((a / b, a) for a, b in pairs), strict=True))
    return [
        f"{model}: p50 of one text of 16 tokens over HTTP, idle: {1000 * latency_s:.1f} ms, "
        f"÷ its bare steps: {ratio:.2f} (≤ 2)."
    ]


def _start(model: str, starts: list[dict[str, Any]]) -> list[str]:
    """Compare warm starts with the floor of any start on jax."""
    seconds = {(record["start"], record["run"]): record["seconds"] for record in starts if record["model"] == model}
    ratios = [warm_s / seconds["floor", run] for (name, run), warm_s in seconds.items() if name == "warm"]
    if not ratios:
        return []
    warm_s = statistics.median(value for (name, _), value in seconds.items() if name == "warm")
    return [f"{model}: warm start to first vector: {warm_s:.2f} s, ÷ floor: {statistics.median(ratios):.2f} (≤ 1.6)."]


def _speed(runs: list[dict[str, Any]], task: str, cell: str) -> float | None:
    found = [record["texts_per_s"] for record in runs if (record["task"], record["cell"]) == (task, cell)]
    return statistics.median(found) if found else None


def _ratio(
    runs: list[dict[str, Any]], task: str, cell: str, *, of: str = "encoder", figure: str = "texts_per_s"
) -> float | None:
    speeds = {(record["task"], record["run"]): record[figure] for record in runs if record["cell"] == cell}
    found = [speed / speeds[task, run] for (name, run), speed in speeds.items() if name == of and (task, run) in speeds]
    return statistics.median(found) if found else None


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
