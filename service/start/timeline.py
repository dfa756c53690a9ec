"""A plot of a start: its task graph with times, and below it the phases and their parts."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from service.start.graph import Task
from service.start.progress import Phase, Span, StartProgress

logger = logging.getLogger(__name__)

COLORS = {
    Phase.IMPORT: "#8d99ae",
    Phase.LOCATE: "#2a9d8f",
    Phase.WEIGHTS: "#3a7ca5",
    Phase.EXECUTABLES: "#e07a5f",
    Phase.TOKENIZER: "#81b29a",
    Phase.WARM: "#f2cc8f",
}
TASK_COLOR = "#5c677d"
ROW_INCHES = 0.26
# Bars that end within this last share of the plot have their label on the left.
LATE_SHARE = 0.2
SMALLEST_BAR_SHARE = 1 / 400


def draw_or_warn(progress: StartProgress, tasks: Sequence[Task[Any]], path: Path, title: str) -> None:
    """Plot a start; only log a failure, since the service works without the plot."""
    try:
        draw(progress, tasks, path, title)
    except OSError as error:
        logger.warning("the plot of the start could not be written", extra={"reason": str(error)})
    else:
        logger.info("plotted the start", extra={"file": str(path)})


def draw(progress: StartProgress, tasks: Sequence[Task[Any]], path: Path, title: str) -> None:
    """Plot a finished start; the suffix of the path determines the format."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Work before the graph ran (the interpreter, the server) has a span but no task.
    begin_of_process_s = progress.began_s
    nodes = sorted(tasks, key=lambda task: task.begin_s)
    spans = _in_order_of_phases(progress.spans)
    end_s = max([span.end_s for span in spans] + [progress.ready_s or 0.0])
    figure = Figure(figsize=(11, 1.8 + ROW_INCHES * (len(nodes) + len(spans))), layout="constrained")
    FigureCanvasAgg(figure)
    graph, phases = figure.subplots(2, sharex=True, height_ratios=[len(nodes), len(spans)])
    _draw_graph(graph, nodes, begin_of_process_s, end_s)
    _draw_spans(phases, spans, end_s)
    moments = [
        ("first token (solid)", progress.first_token_s, "-"),
        ("answering (dotted)", progress.answering_s, ":"),
        ("complete (dashed)", progress.ready_s, "--"),
    ]
    passed = [(name, at_s, style) for name, at_s, style in moments if at_s is not None]
    for axes in (graph, phases):
        for _, at_s, style in passed:
            axes.axvline(at_s, color="#222222", linewidth=0.9, linestyle=style)
        _finish_axes(axes, end_s)
    figure.suptitle(f"{title}: {', '.join(f'{name} {at_s:.2f} s' for name, at_s, _ in passed)}", fontsize=10)
    phases.set_xlabel("seconds since the process began", fontsize=9)
    figure.savefig(path, dpi=150)


def _draw_graph(axes: Any, nodes: Sequence[Task[Any]], began_s: float, end_s: float) -> None:
    """Draw a bar per task, and an arrow from the last of those that it waited for."""
    row_of = {task: row for row, task in enumerate(nodes)}
    for task, row in row_of.items():
        _draw_bar(axes, row, task.begin_s - began_s, task.end_s - began_s, end_s, color=TASK_COLOR, height=0.62)
        last = max(task.waits_for, key=lambda needed: needed.end_s, default=None)
        if last is not None:
            axes.annotate(
                "",
                xy=(task.begin_s - began_s, row),
                xytext=(last.end_s - began_s, row_of[last]),
                arrowprops={"arrowstyle": "-|>", "color": TASK_COLOR, "linewidth": 0.9, "mutation_scale": 7},
            )
    axes.set_yticks(range(len(nodes)), [task.name for task in nodes], fontsize=8)


def _draw_spans(axes: Any, spans: Sequence[Span], end_s: float) -> None:
    for row, span in enumerate(spans):
        height, alpha = (0.78, 1.0) if span.is_whole else (0.5, 0.55)
        _draw_bar(axes, row, span.begin_s, span.end_s, end_s, color=COLORS[span.phase], height=height, alpha=alpha)
    axes.set_yticks(range(len(spans)), [_label(span) for span in spans], fontsize=8)


def _draw_bar(axes: Any, row: int, begin_s: float, end_s: float, last_s: float, **style: Any) -> None:
    axes.barh(row, max(end_s - begin_s, last_s * SMALLEST_BAR_SHARE), left=begin_s, **style)
    is_late = end_s > last_s * (1 - LATE_SHARE)
    axes.text(
        begin_s if is_late else end_s,
        row,
        f" {end_s - begin_s:.2f} s ",
        va="center",
        ha="right" if is_late else "left",
        fontsize=7.5,
        color="#333333",
    )


def _finish_axes(axes: Any, end_s: float) -> None:
    axes.invert_yaxis()
    axes.set_xlim(0, end_s * 1.04)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _in_order_of_phases(spans: Sequence[Span]) -> list[Span]:
    """Sort spans by the start of their phase, with parts below their phase."""
    first: dict[Phase, float] = {}
    for span in spans:
        first[span.phase] = min(span.begin_s, first.get(span.phase, span.begin_s))
    return sorted(spans, key=lambda span: (first[span.phase], not span.is_whole, span.begin_s))


def _label(span: Span) -> str:
    return f"{span.phase} {span.part}".rstrip() if span.is_whole else f"· {span.part}"
