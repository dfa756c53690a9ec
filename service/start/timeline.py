"""The picture of a start: what ran when, and what overlapped."""

from collections.abc import Sequence
from pathlib import Path

from service.start.progress import Phase, Span, Startup

COLORS = {
    Phase.IMPORT: "#8d99ae",
    Phase.LOCATE: "#2a9d8f",
    Phase.WEIGHTS: "#3a7ca5",
    Phase.EXECUTABLES: "#e07a5f",
    Phase.TOKENIZER: "#81b29a",
    Phase.WARM: "#f2cc8f",
}
ROW_INCHES = 0.26
# A label inside a bar that is shorter than this part of the picture would not be read.
INSIDE_SHARE = 0.2


def draw(startup: Startup, path: Path, title: str) -> None:
    """Draw a start that is over; the suffix chooses the format."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = _rows(startup.spans)
    end_s = max([row.end_s for row in rows] + [startup.ready_s or 0.0])
    figure = Figure(figsize=(11, 1.3 + ROW_INCHES * len(rows)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for index, span in enumerate(rows):
        is_part = not span.is_whole
        seconds = span.end_s - span.begin_s
        axes.barh(index, max(seconds, end_s / 400), left=span.begin_s, height=0.5 if is_part else 0.78,
                  color=COLORS[span.phase], alpha=0.55 if is_part else 1.0)  # fmt: skip
        is_late = span.end_s > end_s * (1 - INSIDE_SHARE)
        axes.text(
            span.begin_s if is_late else span.end_s,
            index,
            f" {seconds:.2f} s ",
            va="center",
            ha="right" if is_late else "left",
            fontsize=7.5,
            color="#333333",
        )
    axes.set_yticks(range(len(rows)), [_label(span) for span in rows], fontsize=8)
    axes.invert_yaxis()
    for moment_s, name in ((startup.first_token_s, "first token"), (startup.ready_s, "ready")):
        if moment_s is not None:
            axes.axvline(moment_s, color="#222222", linewidth=0.9, linestyle="--" if name == "ready" else "-")
    moments = [f"{name} {at_s:.2f} s" for at_s, name in _moments(startup)]
    axes.set_title(f"{title}: {', '.join(moments)}", fontsize=10, loc="left")
    axes.set_xlim(0, end_s * 1.04)
    axes.set_xlabel("seconds since the process began", fontsize=9)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    figure.savefig(path, dpi=150)


def _moments(startup: Startup) -> list[tuple[float, str]]:
    moments = ((startup.first_token_s, "first token (solid)"), (startup.ready_s, "ready (dashed)"))
    return [(at_s, name) for at_s, name in moments if at_s is not None]


def _rows(spans: Sequence[Span]) -> list[Span]:
    """Order the spans by phase as they began, a phase's parts below it."""
    first: dict[Phase, float] = {}
    for span in spans:
        first[span.phase] = min(span.begin_s, first.get(span.phase, span.begin_s))
    return sorted(spans, key=lambda span: (first[span.phase], not span.is_whole, span.begin_s))


def _label(span: Span) -> str:
    return f"{span.phase} {span.part}".rstrip() if span.is_whole else f"· {span.part}"
