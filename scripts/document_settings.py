"""Writes the settings of service/settings.py into README.md's table and .env.example; `--check` only compares."""

import re
import sys
from pathlib import Path

from service.setting_meanings import setting_meanings
from service.settings import Settings

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- settings -->", "<!-- /settings -->"
WIDTH = 118


def rows() -> list[tuple[str, str, str]]:
    """Return name, default and meaning of every setting, in the order of settings.py."""
    defaults = {name: field.default for name, field in Settings.model_fields.items()}
    shown = {name: "" if default is None else str(default) for name, default in defaults.items()}
    return [(name.upper(), shown[name], meaning) for name, meaning in setting_meanings().items()]


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
    """Return each document as it should be."""
    readme = ROOT / "README.md"
    pattern = re.compile(f"{BEGIN}\n.*?{END}", re.DOTALL)
    text = pattern.sub(lambda _: f"{BEGIN}\n{readme_table()}\n{END}", readme.read_text())
    return {readme: text, ROOT / ".env.example": env_example()}


def main() -> None:
    """Write or check the documents."""
    for path, text in documents().items():
        if "--check" in sys.argv:
            if not path.is_file() or path.read_text() != text:
                sys.exit(f"{path.name} does not say what service/settings.py does: run `make fix`")
        else:
            path.write_text(text)


if __name__ == "__main__":
    main()
