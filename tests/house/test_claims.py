"""Every claim of the documentation has a test or a result that carries it (docs/contribute/claims.md)."""

import json
import re
from math import prod
from pathlib import Path

import pytest

from service.models.registry import FAMILIES, REFUSED
from tests.house.test_docs import PAGES

ROOT = Path(__file__).parents[2]
ROWS = re.findall(r"^\| `([^`]+)` \| (.+) \| (`.+) \|$", (ROOT / "docs/contribute/claims.md").read_text(), re.MULTILINE)
CLAIMS = [(page, claim.replace("\\|", "|"), carrier) for page, claim, carrier in ROWS]
# In a sentence of the README, what makes it a claim.
MARKS = re.compile(
    r"\b(?:refused|always|never|every|nothing|none)\b|\b\d+(?:\.\d+)? (?:GB|MB|million|times)\b|\b0\.\d+ of\b", re.I
)


def plain(text: str) -> str:
    """Return a text in one line, with the texts of its links."""
    return " ".join(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).split())


def test_a_page_makes_the_claims_that_are_listed():
    assert len(CLAIMS) > 20
    said = {page: plain((ROOT / page).read_text()) for page, _, _ in CLAIMS}
    assert [(page, claim) for page, claim, _ in CLAIMS if claim not in said[page]] == []


@pytest.mark.parametrize("carrier", sorted({carrier for _, _, carrier in CLAIMS}))
def test_what_carries_a_claim_exists_and_says_so(carrier):
    if found := re.fullmatch(r"`([\w/]+\.py)::(\w+)`", carrier):
        path, test = found.groups()
        assert re.search(rf"^(?:async )?def {test}\(", (ROOT / path).read_text(), re.MULTILINE)
    else:
        path, key, figure = re.fullmatch(r"`([\w/]+\.json)` `(\w+)` = ([\d.]+)", carrier).groups()
        value = json.loads((ROOT / path).read_text())[key]
        digits = len(figure.partition(".")[2])
        assert round(value, digits) == float(figure)


def test_every_sentence_of_the_readme_that_claims_something_is_listed():
    prose = re.sub(
        r"```.*?```|^#.*?$|^<!--.*?-->$", "", (ROOT / "README.md").read_text(), flags=re.DOTALL | re.MULTILINE
    )
    sentences = re.split(r"(?<=[.:;])\s+|\n\n|\n- |\n(?=\|)", prose)
    claims = [claim for page, claim, _ in CLAIMS if page == "README.md"]
    marked = [
        plain(sentence) for sentence in sentences if MARKS.search(plain(sentence)) and not sentence.startswith("|")
    ]
    assert [text for text in marked if not any(text in claim or claim in text for claim in claims)] == []


def test_no_sentence_is_on_two_pages():
    found = {}
    for page in PAGES:
        prose = re.sub(r"```.*?```|^\|[-: |]+\|$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        sentences = {plain(sentence) for sentence in re.split(r"(?<=[.:;])\s+|\n\n|\n[-|]", prose)}
        for sentence in sentences:
            if len(sentence.split()) >= 12:
                found.setdefault(sentence, []).append(page)
    assert {sentence: pages for sentence, pages in found.items() if len(pages) > 1} == {}


def test_the_demo_model_has_as_many_parameters_as_pages_say():
    content = (ROOT / "service/demo/model.safetensors").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    count = sum(prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
    assert round(count / 1e6, 1) == 3.9


def test_families_that_pages_call_refused_are_refused():
    assert {"deepseek_v2", "deepseek_v3", "llama4"} <= REFUSED.keys() - FAMILIES.keys()


def test_the_chart_has_the_figures_of_its_pages():
    for panel in json.loads((ROOT / "docs/figures/chart.json").read_text()).values():
        page = (ROOT / panel["page"]).read_text()
        assert [shown for _, shown in panel["bars"] if not re.search(rf"[| ]{re.escape(shown)}[ |]", page)] == []
