"""The pages for those who see little, use no mouse, or hold a telephone."""

from dataclasses import replace

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect

from tests.contract.page.site import running_site
from tests.contract.page.test_chat_page import answer_of, open_options, say
from tests.contract.page.test_conversations import OPEN_A_NEWER_STORE, answer_with, titles
from tests.contract.page.test_markdown import SAMPLE

NARROW = {"width": 390, "height": 800}
# Each size and each scheme once; the slow tests see the other two pairs.
LOOKS = [
    pytest.param({}, "light", id="wide, light"),
    pytest.param(NARROW, "dark", id="narrow, dark"),
    pytest.param({}, "dark", id="wide, dark", marks=pytest.mark.slow),
    pytest.param(NARROW, "light", id="narrow, light", marks=pytest.mark.slow),
]


def violations(page):
    found = Axe().run(page).response["violations"]
    return [(rule["id"], [node["html"][:120] for node in rule["nodes"]]) for rule in found]


def fits(page):
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_the_chat_breaks_no_rule_of_axe_and_fits(site, open_page, size, scheme):
    page = open_page(site.url, color_scheme=scheme, **size)
    expect(page.get_by_role("heading", name="Talk to the model")).to_be_visible()
    assert violations(page) == []
    assert fits(page)
    say(page, "A word of many letters: " + "x" * 200)
    expect(answer_of(page)).to_have_text("Hello world")
    expect(page.get_by_role("button", name="Try again")).to_be_visible()
    assert violations(page) == []
    assert fits(page)
    if size:
        page.get_by_role("button", name="Options").click()
        assert violations(page) == []
        assert fits(page)


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_each_thing_that_opens_on_the_chat_breaks_no_rule_of_axe_and_fits(site, open_page, size, scheme):
    [first] = site.service.readiness.listed()
    site.service.readiness.listed = lambda: [first, replace(first, names=("another-model",))]
    answer_with(site, SAMPLE)
    page = open_page(site.url, color_scheme=scheme, **size)
    say(page, "What will the weather be?")
    expect(answer_of(page).get_by_role("heading")).to_be_visible()
    expect(page.get_by_role("button", name="Try again")).to_be_visible()
    assert (violations(page), fits(page)) == ([], True), "the picker, and Markdown"

    page.get_by_role("button", name="Edit").first.click()
    expect(page.get_by_label("Edit the message")).to_be_focused()
    assert (violations(page), fits(page)) == ([], True), "the form of an edit"
    page.keyboard.press("Escape")

    if size:
        page.get_by_role("button", name="Chats").click()
    expect(titles(page)).to_have_text(["What will the weather be?"])
    assert (violations(page), fits(page)) == ([], True), "the list of conversations"
    page.get_by_role("button", name="Delete “What will").click()
    expect(page.get_by_role("dialog").filter(has_text="What will")).to_be_visible()
    assert (violations(page), fits(page)) == ([], True), "a dialog"
    page.get_by_role("button", name="Cancel").click()
    page.keyboard.press("Escape")

    other = page.context.new_page()
    other.goto(f"{site.url}docs")
    other.evaluate(OPEN_A_NEWER_STORE)
    expect(page.get_by_role("alert")).to_contain_text("Reload this one")
    assert (violations(page), fits(page)) == ([], True), "a notice"


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
@pytest.mark.slow
def test_start_key_and_documentation_break_no_rule_of_axe_and_fit(open_page, size, scheme):
    with running_site() as site:
        site.begin_start()
        page = open_page(site.url, color_scheme=scheme, **size)
        expect(page.locator("#phases")).to_contain_text("7 of 24")
        assert violations(page) == []
        assert fits(page)
        site.finish_start()
        page = open_page(f"{site.url}docs", color_scheme=scheme, **size)
        expect(page.locator("article")).to_have_count(site.num_operations)
        assert violations(page) == []
        assert fits(page)
    with running_site(api_keys=("sk-1",)) as site:
        for path in ("", "docs"):
            page = open_page(site.url + path, color_scheme=scheme, **size)
            expect(page.get_by_label("API key")).to_be_visible()
            assert violations(page) == []
            assert fits(page)


def test_the_whole_chat_works_by_keyboard(site, open_page):
    page = open_page(site.url, **NARROW)
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.keyboard.type("one")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("two")
    expect(page.get_by_label("Message", exact=True)).to_have_value("one\ntwo")
    page.keyboard.press("Enter")
    expect(answer_of(page)).to_have_text("Hello world")

    page.get_by_role("button", name="Options").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Close")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.get_by_label("System prompt")).to_be_focused()
    page.get_by_role("tab", name="curl").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Python")).to_be_focused()
    expect(page.locator("#code")).to_contain_text("from openai import OpenAI")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Options")).to_be_focused()
    expect(page.get_by_label("System prompt")).to_be_hidden()


def test_the_theme_follows_the_system_until_it_is_chosen(site, open_page):
    page = open_page(site.url, color_scheme="dark")
    open_options(page)
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.get_by_role("button", name="Theme: auto").click()
    assert page.evaluate(background) != dark
    page.reload()
    expect(page.get_by_role("button", name="Theme: light")).to_be_visible()
    page.get_by_role("button", name="Theme: light").click()
    assert page.evaluate(background) == dark
