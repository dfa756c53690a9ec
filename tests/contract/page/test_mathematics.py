"""Mathematics in answers: set as in a book, as it was written where that fails, and never harmful."""

import pytest
from playwright.sync_api import expect

from tests.contract.page.test_accessibility import fits, violations
from tests.contract.page.test_chat_page import answer_of
from tests.contract.page.test_markdown import answers_with

__all__ = ["answers_with"]

# What answers have: fractions, roots, matrices, accents, colours, boxes, cancelled terms, wide signs.
FORMULAS = r"""
$$\int_0^\infty \frac{e^{-x^2}}{\sqrt[3]{1 + x}}\,dx
  = \sum_{n=1}^{\infty} \binom{n}{k} \vec{v} \cdot \boldsymbol{\hat{w}} + a + b + c + d + e + f$$

\[ \begin{pmatrix} a & b \\ c & d \end{pmatrix} \xrightarrow{f}
   \begin{cases} 1 & x > 0 \\ 0 & \text{else} \end{cases} \]

$$\boxed{\mathbb{R}, \mathcal{L}, \mathfrak{g}, \mathscr{F}} \quad \cancel{x} \quad
  \fcolorbox{red}{white}{$y$} \quad \overbrace{a + b}^{n}$$
"""


@pytest.mark.parametrize(
    ("text", "sources"),
    [
        ("So $a_1 * b_2 * c$ holds.", ["a_1 * b_2 * c"]),
        (r"So \(x_i^{*}\) and \[ y_{i} \] hold.", ["x_i^{*}", " y_{i} "]),
        ("$$\n- a_1\n= b_1\n$$", ["\n- a_1\n= b_1\n"]),
        ("- one: $x$\n- two:\n  $$\n  y\n  $$", ["x", "\ny\n"]),
        ("It costs $5 or $6.", []),
        ("`$x$` is code, and $x is open", []),
    ],
)
def test_mathematics_is_set_and_its_source_kept_for_readers_of_the_screen(answers_with, text, sources):
    answer = answer_of(answers_with(text))
    found = answer.locator(".mathematics annotation")
    assert [element.text_content() for element in found.all()] == sources
    assert answer.locator(".katex .katex-html").count() == len(sources)
    assert answer.locator("em, hr").count() == 0


def test_formulas_have_their_fonts_break_no_policy_and_scroll_within_themselves(answers_with):
    page = answers_with(FORMULAS)
    answer = answer_of(page)
    expect(answer.locator(".mathematics.wide")).to_have_count(3)
    assert answer.locator("code, .katex-error").count() == 0
    page.evaluate("document.fonts.ready")
    loaded = page.evaluate("[...document.fonts].filter((face) => face.status === 'loaded').map((face) => face.family)")
    assert {"KaTeX_Main", "KaTeX_Math", "KaTeX_Size4", "KaTeX_AMS", "KaTeX_Script"} <= set(loaded)
    assert page.evaluate("[...document.fonts].filter((face) => face.status === 'error').length") == 0
    page.set_viewport_size({"width": 390, "height": 800})
    assert fits(page)
    assert violations(page) == []
    assert answer.locator(".text > .wide, .wide").first.evaluate("(box) => box.scrollWidth > box.clientWidth")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(r"$\frac{1}{$", id="cut"),
        pytest.param(r"$\unknown{x}$", id="unknown"),
        pytest.param(r"$\def\a{\a\a}\a$", id="endless"),
        pytest.param(
            r"$\def\a{xxxxx}\def\b{" + r"\a" * 10 + r"}\def\c{" + r"\b" * 10 + "}" + r"\c" * 99 + "$", id="bomb"
        ),
        pytest.param(r"$\newcommand{\a}{" + "x" * 2000 + "}" + r"\a" * 250 + "$", id="long command"),
        pytest.param("$" + "{" * 3000 + "}" * 3000 + "$", id="deep"),
        pytest.param("$x" + "+x" * 5000 + "$", id="long"),
        pytest.param("$$x and more", id="open"),
    ],
)
def test_what_cannot_be_set_stays_as_it_was_written(answers_with, text):
    answer = answer_of(answers_with(text))
    expect(answer).to_contain_text(text[:12].strip())
    assert answer.locator(".katex").count() == 0


@pytest.mark.parametrize(
    "text",
    [
        r"$\href{javascript:document.title='taken'}{x}$",
        r"$\includegraphics{https://evil.example/x.png}$",
        r"$\htmlStyle{position: fixed}{x} \htmlId{draft}{y}$",
        r"$\text{<img src=x onerror=alert(1)>}$",
        r"$\url{https://evil.example}$",
        r"$\rule{1e9em}{1e9em}$",
    ],
)
def test_commands_that_reach_out_of_a_formula_do_nothing(answers_with, text):
    page = answers_with(text)
    answer = answer_of(page)
    assert answer.locator("a, img, [id], [onerror], [src], [href]").count() == 0
    assert page.title() != "taken"
    assert fits(page)


@pytest.mark.slow
def test_thousands_of_formulas_leave_the_page_usable(answers_with):
    page = answers_with(" ".join(f"$x_{{{i}}}$" for i in range(5000)))
    assert answer_of(page).locator(".katex").count() == 1000
    page.get_by_label("Message", exact=True).fill("still here")
    expect(page.get_by_label("Message", exact=True)).to_have_value("still here")


def test_a_command_that_one_formula_defines_is_unknown_to_the_next(answers_with):
    answer = answer_of(answers_with(r"$\gdef\mine{x} \mine$ and then $\mine$"))
    assert answer.locator(".katex").count() == 1
    expect(answer.locator("code.mathematics")).to_have_text(r"$\mine$")
