"""Documents that agree with the code: settings, folders, links, paths, make targets, errors."""

import ast
import re
import subprocess
import tomllib
from pathlib import Path

from service import errors
from service.settings import Settings

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "terraform/README.md",
]
PAGES += [*sorted((ROOT / "examples").rglob("*.md")), ROOT / "service/demo/README.md"]
ARCHITECTURE = (ROOT / "docs/architecture.md").read_text()
TREE = (ROOT / "docs/tree.md").read_text()
# The pages about the source, whose every path must exist.
INSIDE = ("architecture", "engine", "start", "kernels", "pool", "stores", "deviations")
INSIDE_PAGES = [ROOT / f"docs/{name}.md" for name in INSIDE] + sorted((ROOT / "docs/contribute").glob("*.md"))


def block(name: str, page: str) -> list[str]:
    """The lines of the fenced block with this info string."""
    [text] = re.findall(rf"^```{name}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return text.splitlines()


def folders_of_tree(lines: list[str]) -> list[tuple[str, str]]:
    """Path and phrase of each folder of a tree that is indented by two spaces a level."""
    found, ancestors = [], []
    for line in lines:
        indent, name, phrase = re.fullmatch(r"( *)([\w-]+)/ *(.*)", line).groups()
        ancestors[len(indent) // 2 :] = [name]
        found.append(("/".join(ancestors), phrase))
    return found


def tracked_files(folder: str = ".") -> list[Path]:
    """Files of the working tree that git tracks or would track, relative to the root.

    Where there is no repository, as in an upload to Cloud Build, all files but hidden ones.
    """
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", folder],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if listed.returncode == 0:
        return [Path(name) for name in listed.stdout.splitlines() if (ROOT / name).exists()]
    made = ("__pycache__", "node_modules")
    files = (path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.is_file())
    return [path for path in files if not any(part.startswith(".") or part in made for part in path.parts)]


def test_a_tree_is_read_by_its_indentation():
    assert folders_of_tree(["a/  one", "  b/  two, three", "    c/", "d/  four"]) == [
        ("a", "one"),
        ("a/b", "two, three"),
        ("a/b/c", ""),
        ("d", "four"),
    ]


def test_the_tree_gives_every_folder_one_phrase_and_names_no_other():
    described = folders_of_tree(block("tree", TREE))
    paths = [path for path, _ in described]
    assert [path for path, phrase in described if not phrase] == []
    assert len(set(paths)) == len(paths)
    assert [path for path in paths if not (ROOT / path).is_dir()] == []
    folders = {str(parent) for path in tracked_files("service") for parent in path.parents} - {"."}
    top_level = {path.parts[0] for path in tracked_files() if len(path.parts) > 1 and not path.parts[0].startswith(".")}
    assert (folders | top_level) - set(paths) == set()


def test_the_layers_are_those_that_imports_are_checked_against():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [layers] = [contract["layers"] for contract in contracts if contract.get("containers") == ["service"]]
    assert block("layers", ARCHITECTURE) == layers


def named_paths(page: str) -> set[str]:
    """Every relative path of a folder or of a text file that a page names outside its tree."""
    prose = re.sub(r"^```tree\n.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    return set(re.findall(r"(?<![\w/.:-])((?:[\w-]+/)+(?:[\w-]+\.(?:py|md|toml))?)(?![\w/.<-])", prose))


def test_every_file_and_folder_that_pages_about_the_source_name_exists():
    roots = [ROOT, ROOT / "service", ROOT / "docs"]
    for page in INSIDE_PAGES:
        named = sorted(named_paths(page.read_text()))
        assert [path for path in named if not any((root / path).exists() for root in roots)] == [], page


def test_the_questions_of_a_newcomer_lead_to_what_exists():
    rows = re.findall(
        r"^\| (?!to change …)([a-z].*) \| (.*`.*) \|$", (ROOT / "docs/contribute/where.md").read_text(), re.MULTILINE
    )
    assert len(rows) > 40
    answers = {question: re.findall(r"`([\w/]+(?:\.py|/))`", answer) for question, answer in rows}
    missing = [path for paths in answers.values() for path in paths if not (ROOT / "service" / path).exists()]
    assert missing == []
    assert [question for question, paths in answers.items() if not paths] == []


def test_every_source_file_that_a_page_names_exists():
    for page in PAGES:
        sources = {path for path in named_paths(page.read_text()) if path.endswith(".py")}
        roots = [ROOT, ROOT / "service", page.parent]
        assert [path for path in sorted(sources) if not any((root / path).exists() for root in roots)] == [], page


def test_every_link_inside_the_repository_leads_somewhere():
    links = [(page, target) for page in PAGES for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text())]
    for page, target in links:
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        linked = page.parent / path if path else page
        assert linked.exists(), (page, target)
        assert not anchor or anchor in anchors_of(linked), (page, target)


def anchors_of(page: Path) -> set[str]:
    """The anchors that GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def make_targets(makefile: str) -> set[str]:
    """The targets that a Makefile defines."""
    return set(re.findall(r"^([\w./-]+):(?!=)", makefile, re.MULTILINE))


FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def named_targets(page: str) -> set[str]:
    """The targets of every `make …` in code: inline, and as a command of a shell block."""
    code = re.findall(r"`([^`\n]+)`", FENCED.sub("", page))
    code += [line for kind, text in FENCED.findall(page) if kind in ("", "bash") for line in text.splitlines()]
    bare = [re.sub(r'"[^"]*"', "", line) for line in code]  # a value in quotes names no target
    words = [word for line in bare for call in re.findall(r"\bmake +([^#&|;]+)", line) for word in call.split()]
    return {word for word in words if re.fullmatch(r"[\w./-]+", word)}


def test_targets_are_found_in_prose_and_in_blocks():
    page = 'Run `make fix` or:\n```bash\nA=b make test check  # both\nmake image A="x y" && make smoke\n```\n'
    assert named_targets(page) == {"fix", "test", "check", "image", "smoke"}
    assert make_targets("test: .venv/dev\n\tx\nUV := y\n") == {"test"}


def test_the_make_targets_that_are_named_exist():
    targets = make_targets((ROOT / "Makefile").read_text())
    assert {page: missing for page in PAGES if (missing := named_targets(page.read_text()) - targets)} == {}


def test_every_setting_has_a_description():
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_every_error_stands_in_the_tree_of_errors_and_can_be_imported_beside_it():
    files = [path for path in (ROOT / "service/errors").glob("*.py") if path.stem != "__init__"]
    nodes = [node for path in files for node in ast.parse(path.read_text()).body]
    defined = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    assert set(re.findall(r"\w+", errors.__doc__)) >= defined
    assert set(errors.__all__) == defined
