"""The page of a device check, and the file of a part."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def write_part(out: Path, part: str, rows: Sequence[Row]) -> None:
    """Write the rows of a part; each has `check`, `passed` and figures."""
    (out / f"{part}.json").write_text(json.dumps({"rows": list(rows)}, indent=1))


def write_page(results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table for each part; a part that has not run has none."""
    parts = [f"## {part}\n\n{_table(result['rows'])}\n" for part, result in results.items() if result.get("rows")]
    missing = [part for part, result in results.items() if not result.get("rows")]
    note = f"Not run: {', '.join(missing)}.\n" if missing else ""
    return "\n".join(["# Device check\n", *parts, note])


def _table(rows: Sequence[Row]) -> str:
    figures = list(dict.fromkeys(name for row in rows for name in row if name not in ("check", "passed")))
    head = ["check", "result", *figures]
    lines = [_line(head), _line(["---"] * len(head))]
    for row in rows:
        lines.append(
            _line([row["check"], "pass" if row["passed"] else "FAIL", *(row.get(name, "") for name in figures)])
        )
    return "\n".join(lines)


def _line(cells: Sequence[object]) -> str:
    return f"| {' | '.join(str(cell).replace('|', '/').replace(chr(10), ' ') for cell in cells)} |"
