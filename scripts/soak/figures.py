"""Figures of a soak beside their bounds, and the sizes that it can have."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One measured figure."""

    row: str
    bound: str
    figure: str
    is_met: bool
    is_timing: bool = False  # depends on what else the machine does


@dataclass(frozen=True)
class Scale:
    """The counts and times of a soak; times in seconds."""

    num_idle: int = 2000
    num_half_open: int = 300
    num_deaf: int = 200
    crowd_s: float = 15.0  # for how long others are timed beside them; they are closed after 30 s
    num_vanishing: int = 200
    num_terminations: int = 20
    failing_steps: tuple[int, ...] = (1, 5, 20, 60)
    neighbour_s: float = 15.0  # for how long others are timed beside the bodies of one client


SHORT = Scale(
    num_idle=200,
    num_half_open=30,
    num_deaf=20,
    crowd_s=5.0,
    num_terminations=4,
    failing_steps=(12,),
    neighbour_s=4.0,
)


def table(figures: Sequence[Figure]) -> str:
    """Return figures as a table in Markdown."""
    rows = [("row", "bound", "figure", ""), ("---",) * 4]
    rows += [(f.row, f.bound, f.figure, "pass" if f.is_met else "FAIL") for f in figures]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def percentile(values: Iterable[float], percent: float) -> float:
    """Return the smallest value that so many percent of the values do not exceed; infinite if there are none."""
    ordered = sorted(values)
    if not ordered:
        return float("inf")
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def count(outcomes: Iterable[str]) -> str:
    """Return how often each outcome occurs, as text."""
    known = sorted(outcomes)
    return ", ".join(f"{known.count(name)} {name}" for name in dict.fromkeys(known)) or "none"
