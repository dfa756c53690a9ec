"""Write into documents what follows from the code: the reference, the graph of a start, tables and the chart."""

import json
import logging
import re
import sys
from collections.abc import Callable
from pathlib import Path

from pydantic_core import PydanticUndefined

from scripts.chart import chart
from scripts.memory_table import adapters_table, memory_table
from scripts.reference import (
    commands_reference,
    errors_reference,
    metrics_reference,
    models_config_reference,
    routes_reference,
    settings_reference,
)
from scripts.support_table import support_tables
from scripts.vllm_table import vllm_tables
from service.api.openapi.document import document
from service.api.routes import all_routers
from service.server.service import Service
from service.settings import Settings
from service.start.context import StartContext
from service.start.graph import Tasks
from service.start.load import add_start

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def rows() -> list[tuple[str, str, str]]:
    """Return the name, default and meaning of every setting, in the order of their declaration."""
    return [
        (
            name.upper(),
            "" if field.default in (None, PydanticUndefined) else str(field.default),
            field.description or "",
        )
        for name, field in Settings.model_fields.items()
    ]


def env_example() -> str:
    """Return .env.example: every setting, commented out, with its default."""
    head = "# Every setting of Levserve with its default. Copy to .env, or pass with `docker run --env-file`.\n"
    return head + "".join(f"\n# {meaning.replace('`', '')}\n#{name}={default}\n" for name, default, meaning in rows())


def documents() -> dict[Path, str]:
    """Return the text that each document has to hold."""
    written: dict[Path, str] = {
        ROOT / ".env.example": env_example(),
        DOCS / "openapi.json": interface(),
        DOCS / "figures/chart.svg": chart(),
    }
    for name, parts in PARTS.items():
        page = (DOCS / name).read_text()
        for mark, content in parts.items():
            page = replaced(page, mark, content())
        written[DOCS / name] = page
    return written


def short_tree() -> str:
    """Return the upper levels of the tree of docs/tree.md: the folders of the repository, and those of the service."""
    [tree] = re.findall(r"```tree\n(.*?)```", (DOCS / "tree.md").read_text(), re.DOTALL)
    lines, shown, top = tree.splitlines(), [], ""
    for line in lines:
        top = line if not line.startswith(" ") else top
        if line == top or (top.startswith("service/") and not line.startswith("    ")):
            shown.append(line)
    return "\n".join(["```text", *shown, "```"])


def interface() -> str:
    """Return the OpenAPI document of a service with batches and keys, so that a review sees each changed limit."""
    described = document(all_routers(has_batches=True), version="0", needs_key=True)
    return json.dumps(described, ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def start_table() -> str:
    """Return the tasks of a service's start as a table."""
    tasks = Tasks[StartContext]()
    add_start(tasks, Service(Settings()).import_api)
    return tasks.table()


def replaced(text: str, name: str, content: str) -> str:
    """Return a document with new content between the markers of this name."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    return re.sub(f"{begin}\n.*?{end}", lambda _: f"{begin}\n{content}\n{end}", text, flags=re.DOTALL)


# What each page of docs/ takes from the code, between two markers of this name.
PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "architecture.md": {"tree": short_tree},
    "from_vllm.md": {"flags": vllm_tables},
    "memory.md": {"memory": memory_table, "adapters": adapters_table},
    "reference/commands.md": {"commands": commands_reference},
    "reference/errors.md": {"errors": errors_reference},
    "reference/fields.md": {"support": support_tables},
    "reference/metrics.md": {"metrics": metrics_reference},
    "reference/models_config.md": {"models config": models_config_reference},
    "reference/routes.md": {"routes": routes_reference},
    "reference/settings.md": {"settings": settings_reference},
    "start.md": {"start graph": start_table},
}


def main() -> int:
    """Write the documents; with `--check`, only name those that would change, and return 1 if there are any."""
    logging.disable(logging.WARNING)  # what a start would say of each plan
    stale = {path: text for path, text in documents().items() if path.read_text() != text}
    if "--check" in sys.argv[1:]:
        print(*(path.relative_to(ROOT) for path in stale))
        return int(bool(stale))
    for path, text in stale.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
