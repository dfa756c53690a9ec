"""Write into documents what the code says: settings, the graph of a start, and the interface."""

import json
import re
import sys
from pathlib import Path

from scripts.memory_table import adapters_table, memory_table
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
WIDTH = 118


def rows() -> list[tuple[str, str, str]]:
    """Return the name, default and meaning of every setting, in the order of their declaration."""
    return [
        (name.upper(), "" if field.default is None else str(field.default), field.description or "")
        for name, field in Settings.model_fields.items()
    ]


def readme_table() -> str:
    """Return the table of README.md."""
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    lines += [f"| `{name}` | {f'`{default}`' if default else ''} | {meaning} |" for name, default, meaning in rows()]
    return "\n".join(lines)


def env_example() -> str:
    """Return .env.example: every setting, commented out, with its default."""
    head = "# Every setting of Levserve with its default. Copy to .env, or pass with `docker run --env-file`.\n"
    return head + "".join(f"\n# {meaning.replace('`', '')}\n#{name}={default}\n" for name, default, meaning in rows())


def documents() -> dict[Path, str]:
    """Return the text that each document has to hold."""
    names = ("README.md", "docs/architecture.md", "docs/openai.md", "docs/memory.md")
    readme, architecture, openai, memory = (ROOT / name for name in names)
    return {
        readme: replaced(readme.read_text(), "settings", readme_table()),
        architecture: replaced(architecture.read_text(), "start graph", start_table()),
        openai: replaced(openai.read_text(), "support", support_tables()),
        memory: replaced(replaced(memory.read_text(), "memory", memory_table()), "adapters", adapters_table()),
        ROOT / "docs/from_vllm.md": replaced((ROOT / "docs/from_vllm.md").read_text(), "flags", vllm_tables()),
        ROOT / ".env.example": env_example(),
        ROOT / "docs/openapi.json": interface(),
    }


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


def main() -> int:
    """Write the documents; with `--check`, only name those that would change, and return 1 if there are any."""
    stale = {path: text for path, text in documents().items() if path.read_text() != text}
    if "--check" in sys.argv[1:]:
        print(*(path.relative_to(ROOT) for path in stale))
        return int(bool(stale))
    for path, text in stale.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
