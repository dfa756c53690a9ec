"""Build the documentation as a site in .cache/docs/site, and fail if a link of it leads nowhere.

The pages are those of docs/ and a few others of the repository. A link to a file that is no page becomes its path,
since a site cannot show it. What the site looks like is in mkdocs.yml, which Zensical reads.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from os.path import relpath
from pathlib import Path
from typing import override
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
# Zensical keeps a cache in `.cache` beside its configuration, so the site is built in a folder of its own.
BUILD = ROOT / ".cache/docs"
SOURCE, SITE = BUILD / "docs", BUILD / "site"  # as mkdocs.yml names them
DOCS = ROOT / "docs"
# Files outside of docs/ that are pages too, by their names in the site.
MORE = {
    "CONTRIBUTING.md": "contribute/index.md",
    "CHANGELOG.md": "changes.md",
    "examples/adapters/README.md": "examples/adapters.md",
    "examples/demo_model/README.md": "examples/demo_model.md",
    "examples/evaluate/README.md": "examples/evaluate.md",
    "examples/hear/README.md": "examples/hear.md",
    "examples/levanter_run/README.md": "examples/levanter_run.md",
    "examples/search/README.md": "examples/search.md",
    "examples/see/README.md": "examples/see.md",
    "examples/tools/README.md": "examples/tools.md",
    "terraform/README.md": "deploy/terraform.md",
    "benchmarks/results/serving.png": "serving.png",
}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")
FENCE = re.compile(r"^(```.*?^```)$", re.MULTILINE | re.DOTALL)


def main() -> int:
    """Build the site; return 1 if Zensical warns or a link leads nowhere."""
    write_source()
    built = subprocess.run([sys.executable, "-m", "zensical", "build", "--strict"], cwd=BUILD, check=False)
    broken = list(broken_links(SITE)) if built.returncode == 0 else []
    print(*broken, sep="\n")
    return 1 if built.returncode or broken else 0


def write_source() -> None:
    """Write the pages and their pictures, with links as they are in the site."""
    shutil.rmtree(BUILD, ignore_errors=True)
    places = {path: path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*") if path.is_file()}
    places |= {ROOT / path: place for path, place in MORE.items()}
    for path, place in places.items():
        target = SOURCE / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            target.write_text(site_text(path, place, places))
        else:
            shutil.copyfile(path, target)
    shutil.copyfile(ROOT / "mkdocs.yml", BUILD / "mkdocs.yml")


def site_text(path: Path, place: str, places: dict[Path, str]) -> str:
    """Return the text of a page with the links of the site.

    Args:
        path: the file.
        place: its name in the site.
        places: the names of all files in the site.
    """

    def link(match: re.Match[str]) -> str:
        mark, text, target = match.groups()
        url = urlsplit(target)
        if url.scheme or not url.path:
            return match[0]
        file = (path.parent / url.path).resolve()
        if file in places:
            fragment = f"#{url.fragment}" if url.fragment else ""
            return f"{mark}[{text}]({relpath(places[file], Path(place).parent)}{fragment})"
        name = file.relative_to(ROOT).as_posix()
        return text if text.strip("`") == name else f"{text} (`{name}`)"

    parts = FENCE.split(path.read_text())
    return "".join(part if part.startswith("```") else LINK.sub(link, part) for part in parts)


class _Links(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        self.anchors |= {value for key in ("id", "name") if (value := named.get(key))}
        target = named.get("href" if tag in ("a", "link") else "src" if tag in ("img", "script") else "")
        if target is not None:
            self.links.append(target)


def broken_links(site: Path) -> Iterator[str]:
    """Yield the links inside a built site that lead to no file or no anchor."""
    pages = {page: _Links() for page in site.rglob("*.html") if page.name != "404.html"}
    for page, found in pages.items():
        found.feed(page.read_text())
    for page, found in pages.items():
        for target in found.links:
            url = urlsplit(target)
            if url.scheme or url.netloc:
                continue
            file = (page.parent / unquote(url.path)).resolve() if url.path else page
            file = file / "index.html" if file.is_dir() else file
            if not file.exists() or (
                url.fragment and file in pages and unquote(url.fragment) not in pages[file].anchors
            ):
                yield f"{page.relative_to(site)}: {target} leads nowhere"


if __name__ == "__main__":
    sys.exit(main())
