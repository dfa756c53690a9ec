"""Write the settings of service/settings.py into the table in README.md and into .env.example."""

import re
from pathlib import Path

from service.settings import Settings

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- settings -->", "<!-- /settings -->"
WIDTH = 118


def rows() -> list[tuple[str, str, str]]:
    """Return the name, default and meaning of every setting, in the order of settings.py."""
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
    readme = ROOT / "README.md"
    pattern = re.compile(f"{BEGIN}\n.*?{END}", re.DOTALL)
    text = pattern.sub(lambda _: f"{BEGIN}\n{readme_table()}\n{END}", readme.read_text())
    return {readme: text, ROOT / ".env.example": env_example()}


def main() -> None:
    """Write the documents."""
    for path, text in documents().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
