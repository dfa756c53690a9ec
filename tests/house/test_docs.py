"""Documentation that cannot lie."""

import ast
import re
from pathlib import Path

from scripts.document_settings import documents
from service import errors
from service.settings import Settings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_settings_are_the_same_in_the_code_the_readme_and_the_example():
    for path, text in documents().items():
        assert path.read_text() == text, f"{path.name}: run `make fix`"


def test_every_setting_says_what_it_means():
    assert all(field.description for field in Settings.model_fields.values())


def test_every_path_that_the_readme_links_to_exists():
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_file_of_the_service_stands_in_the_tree():
    tree = README[README.index("## The tree") : README.index("## How a start goes")]
    words = set(re.findall(r"[a-z0-9_]+", tree))
    stems = {path.stem for path in (ROOT / "service").rglob("*.py")} - {"__init__", "__main__"}
    assert stems - words == set()


def test_every_error_stands_in_the_tree_of_errors_and_can_be_imported_beside_it():
    files = [path for path in (ROOT / "service/errors").glob("*.py") if path.stem != "__init__"]
    nodes = [node for path in files for node in ast.parse(path.read_text()).body]
    defined = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    assert set(re.findall(r"\w+", errors.__doc__)) >= defined
    assert set(errors.__all__) == defined


def test_the_make_targets_that_are_named_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = README + (ROOT / "CONTRIBUTING.md").read_text()
    assert set(re.findall(r"`make ([a-z-]+)`", text)) <= targets
