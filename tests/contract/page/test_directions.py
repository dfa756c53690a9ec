"""Arabic and Hebrew from right to left, beside English, and what moves."""

import pytest
from playwright.sync_api import expect

from tests.api.scripted_engine import STALL, tokens
from tests.contract.page.test_chat_page import answer_of, say
from tests.contract.page.test_conversations import answer_with, questions, titles

ARABIC, HEBREW = "ما هو الطقس غدا؟", "מה שלומך היום?"
MIXED = f"{ARABIC}\n\n- {HEBREW}\n- two\n\nAn English paragraph.\n\n```\nx = 1\n```"
MOVING = "document.getAnimations().map(({ effect }) => effect.target.className)"


def direction(locator):
    return locator.evaluate("(element) => getComputedStyle(element).direction")


def start_of(locator):
    """Return the side on which the first letter of an element's text stands."""
    return locator.evaluate("""(element) => {
      const range = document.createRange(), text = document.createTreeWalker(element, NodeFilter.SHOW_TEXT).nextNode();
      range.setStart(text, 0);
      range.setEnd(text, 1);
      const letter = range.getBoundingClientRect(), box = element.getBoundingClientRect();
      return letter.left - box.left > box.right - letter.right ? "right" : "left";
    }""")


@pytest.mark.parametrize("text", [ARABIC, pytest.param(HEBREW, marks=pytest.mark.slow)])
def test_question_answer_box_and_title_run_in_their_own_direction(site, open_page, text):
    answer_with(site, MIXED)
    page = open_page(site.url)
    box = page.get_by_label("Message", exact=True)
    box.fill(text)
    assert direction(box) == "rtl"
    say(page, text)
    answer = answer_of(page)
    expect(answer.locator("p").last).to_have_text("An English paragraph.")
    for element in (questions(page), answer, answer.locator("p").first, answer.locator("ul"), titles(page)):
        assert direction(element) == "rtl"
    assert [start_of(p) for p in (answer.locator("p").first, answer.locator("p").last)] == ["right", "left"]
    assert direction(answer.locator("pre")) == "ltr"
    search = page.get_by_role("searchbox")
    search.fill(text)
    assert direction(search) == "rtl"
    page.get_by_role("button", name="Rename").click()
    assert direction(page.get_by_label("Title of the conversation")) == "rtl"
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Edit").click()
    assert direction(page.get_by_label("Edit the message")) == "rtl"


@pytest.mark.slow
def test_each_line_of_a_question_has_its_own_direction(site, open_page):
    page = open_page(site.url)
    say(page, f"English first\n{ARABIC}")
    assert direction(questions(page)) == "ltr"
    assert questions(page).evaluate("(element) => getComputedStyle(element).unicodeBidi") == "plaintext"


@pytest.mark.parametrize("wish", ["reduce", pytest.param("no-preference", marks=pytest.mark.slow)])
def test_nothing_moves_for_those_who_ask_for_that(site, open_page, wish):
    site.begin_start()
    page = open_page(site.url, reduced_motion=wish)
    expect(page.locator("#phases")).to_contain_text("7 of 24")
    assert page.evaluate(MOVING) == []
    site.finish_start()
    site.engine.script[:] = [*tokens("Hello"), STALL]
    say(page)
    expect(answer_of(page)).to_have_text("Hello")
    expect(page.locator("li.assistant")).to_have_attribute("aria-busy", "true")
    assert bool(page.evaluate(MOVING)) == (wish == "no-preference")
    moving = page.evaluate("""[...document.querySelectorAll("*")].flatMap((element) =>
      ["", "::before", "::after"].map((part) => getComputedStyle(element, part)))
      .filter((style) => style.animationName !== "none" || parseFloat(style.transitionDuration) > 0).length""")
    assert bool(moving) == (wish == "no-preference")
