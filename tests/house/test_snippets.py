"""Snippets of every page work as printed, as far as that needs no server: commands, bodies, YAML, Python.

Those of the README run against a service (tests/server/test_readme.py); those of deployments are checked with their
flags and variables (tests/deploy/test_documents.py).
"""

import ast
import re
import shlex
from importlib.util import find_spec

import pytest

from service.api.schema.chat import ChatCompletionRequest
from service.api.schema.completions import CompletionRequest
from service.api.schema.embeddings import EmbeddingsRequest
from service.api.schema.rerank import RerankRequest
from service.api.schema.wire import parse
from service.catalogue.described import read_models
from service.cli import build_parser
from tests.house.test_docs import PAGES, ROOT

BODIES = {
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/completions": CompletionRequest,
    "/v1/embeddings": EmbeddingsRequest,
    "/v1/rerank": RerankRequest,
}
APART = {"ray"}  # extras that the environment of the tests has not
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SNIPPETS = [
    (page.relative_to(ROOT).as_posix(), kind, text) for page in PAGES for kind, text in BLOCK.findall(page.read_text())
]
SHELL = [(page, re.sub(r" *\\\n\s*", " ", text)) for page, kind, text in SNIPPETS if kind in ("bash", "sh", "")]


def test_every_command_of_levserve_is_one():
    commands = "serve|prewarm|check|convert|import|compare|batch|completion"  # `smoke` is checked with deployments
    found = []
    for _, text in SHELL:
        for match in re.finditer(rf"(?:^|[\s/])levserve (?=(?:{commands})\b)([^\n]*)", text):
            words = shlex.split(re.split(r"\s[#|;&>]|[)]", match[1].replace("$(", ""))[0].replace('"', ""))
            found.append(["http://x" if "$" in word else word for word in words])
    assert len(found) >= 10
    for words in found:
        if "--help" not in words:
            build_parser(words[0]).parse_args(words)


def test_every_body_that_is_sent_is_one_of_its_route():
    found = []
    for page, text in SHELL:
        for path, body in re.findall(r"localhost:8080(/[\w/]+)[^\n]*?\s+-d '(\{[^']*\})'", text):
            found.append((page, path, body))
    assert len(found) >= 6
    for page, path, body in found:
        assert parse(BODIES[path], body.replace("$model", "x").encode()).ignored == (), page


@pytest.mark.parametrize(("page", "text"), [(page, text) for page, kind, text in SNIPPETS if kind == "python"])
def test_python_is_python_whose_imports_are_packages(page, text):
    tree = ast.parse(text)
    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    packages = {name.partition(".")[0] for name in names} - APART
    assert [name for name in packages if find_spec(name) is None] == []


def test_the_example_of_models_config_is_read():
    [text] = [text for page, kind, text in SNIPPETS if page == "docs/reference/models_config.md" and kind == "yaml"]
    assert [entry.name for entry in read_models(text, "models.yaml")] == ["org/chat", "org/support", "org/run"]
