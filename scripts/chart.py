"""Draw the chart of README.md, docs/figures/chart.svg, from docs/figures/chart.json."""

import json
from html import escape
from pathlib import Path
from typing import Any

FIGURES = Path(__file__).parents[1] / "docs/figures"
WIDTH, LABEL, BAR, ROW, PANEL = 760, 150, 480, 26, 62  # in pixels
OURS, OTHERS = "#1b7f79", "#8d99ae"


def chart() -> str:
    """Return the chart as SVG: a panel for each machine, in each of which the longest bar fills the width."""
    panels: dict[str, dict[str, Any]] = json.loads((FIGURES / "chart.json").read_text())
    parts, top = [], 0
    for panel in panels.values():
        parts.append(_text(10, top + 22, panel["title"], size=14, weight="bold"))
        values = [float(shown.replace(",", "")) for _, shown in panel["bars"]]
        for row, ((name, shown), value) in enumerate(zip(panel["bars"], values, strict=True)):
            y = top + 34 + row * ROW
            length = BAR * value / max(values)
            color = OURS if name.startswith("Levserve") else OTHERS
            parts.append(_text(LABEL, y + 15, name, anchor="end"))
            parts.append(f'<rect x="{LABEL + 8}" y="{y}" width="{length:.0f}" height="20" rx="2" fill="{color}"/>')
            parts.append(_text(LABEL + 14 + length, y + 15, shown))
        top += 34 + len(values) * ROW + PANEL - 34
        parts.append(_text(10, top - 8, panel["note"], size=11, color="#6b7280"))
        top += 12
    size = f'width="{WIDTH}" height="{top}" viewBox="0 0 {WIDTH} {top}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="system-ui, sans-serif" role="img">'
    return "\n".join([head, f'<rect width="{WIDTH}" height="{top}" fill="#ffffff"/>', *parts, "</svg>", ""])


def _text(
    x: float, y: float, text: str, *, size: int = 13, color: str = "#1f2937", anchor: str = "start", weight: str = ""
) -> str:
    bold = f' font-weight="{weight}"' if weight else ""
    place = f'x="{x:.0f}" y="{y}" font-size="{size}" fill="{color}" text-anchor="{anchor}"'
    return f"<text {place}{bold}>{escape(text)}</text>"
