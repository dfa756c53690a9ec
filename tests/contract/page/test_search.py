"""Search in the conversations of a browser: in titles and in what was said."""

import pytest
from playwright.sync_api import expect

from tests.contract.page.test_accessibility import violations
from tests.contract.page.test_chat_page import answer_of, say
from tests.contract.page.test_conversations import answer_with, questions, titles


def search(page, wanted):
    page.get_by_role("searchbox", name="Search conversations").fill(wanted)


def ask(page, question):
    page.get_by_role("button", name="New chat").click()
    say(page, question)
    expect(page.get_by_role("button", name="Try again")).to_be_visible()


def test_what_was_asked_and_what_was_answered_is_found(site, open_page):
    page = open_page(site.url)
    answer_with(site, "Zürich has a lake.\n" + "Much more is to be said. " * 20)
    ask(page, "Tell me of a city")
    answer_with(site, "Hello world")
    ask(page, "And now: <b>the passport</b>, ΟΔΟΣ")
    ask(page, "third")

    for wanted in ("zurich", "ZÜRICH lake", "  city \n said "):
        search(page, wanted)
        expect(titles(page)).to_have_text(["Tell me of a city"])
    expect(page.locator("#list mark")).to_have_text("city")
    for wanted in ("PASSPORT", "οδος", "hello passport"):
        search(page, wanted)
        expect(titles(page)).to_have_text(["And now: <b>the passport</b>, ΟΔΟΣ"])
    assert page.locator("#list b").count() == 0
    assert violations(page) == []
    search(page, "zebra")
    expect(page.locator("#list-empty")).to_have_text("No conversation has that.")
    search(page, "")
    expect(titles(page)).to_have_count(3)


@pytest.mark.slow
def test_what_is_found_on_another_branch_is_shown(site, open_page):
    page = open_page(site.url)
    answer_with(site, "the needle")
    ask(page, "old question")
    answer_with(site, "Hello world")
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Edit the message").fill("new question")
    page.get_by_role("button", name="Send", exact=True).first.click()
    expect(questions(page)).to_have_text("new question")
    expect(page.get_by_role("button", name="Try again")).to_be_visible()
    ask(page, "elsewhere")
    search(page, "needle")
    expect(titles(page)).to_have_text(["old question"])
    titles(page).click()
    expect(answer_of(page)).to_have_text("the needle")
    expect(questions(page)).to_have_text("old question")
