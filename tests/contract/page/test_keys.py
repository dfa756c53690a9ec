"""Keys where text is written: input methods, telephones, and the shortcut of a new chat."""

import pytest
from playwright.sync_api import expect

from tests.api.scripted_engine import STALL, tokens
from tests.contract.page.test_chat_page import answer_of, say, wait_until

PHONE = {"width": 390, "height": 800, "has_touch": True, "is_mobile": True}
# A key as an input method has it: Chromium's and Firefox's while a word is composed, Safari's after the word has ended.
COMPOSING = {"isComposing": True, "keyCode": 229}
COMPOSED_IN_SAFARI = {"isComposing": False, "keyCode": 229}
PRESS = """(field, [key, properties]) => field.dispatchEvent(new KeyboardEvent(
    "keydown", { key, code: key, bubbles: true, cancelable: true, ...properties }))"""
INPUT_METHODS = [
    pytest.param(COMPOSING, id="composing", marks=pytest.mark.slow),
    pytest.param(COMPOSED_IN_SAFARI, id="Safari"),
]


def draft(page):
    return page.get_by_label("Message", exact=True)


@pytest.mark.parametrize("how", INPUT_METHODS)
def test_an_input_methods_enter_sends_nothing_and_the_next_one_does(site, open_page, how):
    page = open_page(site.url)
    draft(page).fill("日本")
    draft(page).evaluate(PRESS, ["Enter", how])
    expect(draft(page)).to_have_value("日本")
    assert site.engine.streams == []
    draft(page).press("Enter")
    expect(answer_of(page)).to_have_text("Hello world")
    assert len(site.engine.streams) == 1

    page.get_by_role("button", name="Edit").click()
    editing = page.get_by_label("Edit the message")
    editing.evaluate(PRESS, ["Enter", how])
    editing.evaluate(PRESS, ["Escape", how])
    expect(editing).to_be_visible()
    assert len(site.engine.streams) == 1

    page.get_by_role("button", name="Rename").click()
    renaming = page.get_by_label("Title of the conversation")
    renaming.evaluate(PRESS, ["Escape", how])
    expect(renaming).to_be_visible()


@pytest.mark.parametrize("how", INPUT_METHODS)
def test_an_input_methods_escape_stops_no_answer(site, open_page, how):
    site.engine.script[:] = [*tokens("Hello"), STALL]
    page = open_page(site.url)
    say(page)
    expect(answer_of(page)).to_have_text("Hello")
    draft(page).evaluate(PRESS, ["Escape", how])
    expect(page.get_by_role("button", name="Stop")).to_be_visible()
    assert not site.engine.last.is_aborted
    page.keyboard.press("Escape")
    wait_until(lambda: site.engine.last.is_aborted)


def test_on_a_phone_enter_begins_a_line_and_a_button_sends(site, open_page):
    page = open_page(site.url, **PHONE)
    expect(draft(page)).to_have_attribute("enterkeyhint", "enter")
    draft(page).fill("one")
    draft(page).press("Enter")
    page.keyboard.type("two")
    expect(draft(page)).to_have_value("one\ntwo")
    assert site.engine.streams == []
    page.get_by_role("button", name="Send", exact=True).click()
    expect(answer_of(page)).to_have_text("Hello world")
    page.get_by_role("button", name="Edit").click()
    editing = page.get_by_label("Edit the message")
    editing.press("End")
    editing.press("Enter")
    expect(editing).to_have_value("one\ntwo\n")
    assert len(site.engine.streams) == 1
    editing.press("Control+Enter")
    expect(page.locator("li.user .text")).to_have_text("one two")


def test_a_new_chat_is_one_combination_of_keys_away(site, open_page):
    page = open_page(site.url)
    say(page)
    expect(answer_of(page)).to_have_text("Hello world")
    keys = page.get_by_role("button", name="New chat").get_attribute("aria-keyshortcuts")
    page.keyboard.press(keys)
    expect(page.locator("#messages li")).to_have_count(0)
    expect(draft(page)).to_be_focused()
    expect(draft(page)).to_have_value("")
