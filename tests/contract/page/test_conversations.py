"""Conversations in the browser: kept, found, changed, deleted, shared by tabs, and what if they cannot be kept."""

import json
from dataclasses import replace

import pytest
from playwright.sync_api import expect

from service.engine.request import FinishReason
from tests.api.scripted_engine import STALL, tokens
from tests.contract.page.test_chat_page import answer_of, say, wait_until

MANY = 500
HOSTILE_TITLE = "<img src=x onerror=\"document.title = 'taken'\">"
WRITE_MANY = """async (count) => {
  const store = await Conversations.open();
  for (let i = 0; i < count; i += 1) {
    const fields = { title: `Chat ${i}`, created: i + 1, updated: i + 1, leaf: `m-${i}`, options: {}, model: "" };
    await store.write(`id-${i}`, fields, [{ id: `m-${i}`, parent: null, role: "user", content: `Question ${i}` }]);
  }
}"""

OPEN_A_NEWER_STORE = """() => new Promise((resolve) => {
  const opening = indexedDB.open("levserve", 99);
  opening.onsuccess = () => { opening.result.close(); resolve(); };
})"""
STORED_ANSWERS = """async () => {
  const stored = await store.read(state.chat.conversation.id);
  return stored.messages.filter(({ role }) => role === "assistant").length;
}"""


def titles(page):
    return page.locator("#list .title")


def answer_with(site, text):
    site.engine.script = [*tokens(text), FinishReason.STOP]


def questions(page):
    return page.locator("li.user .text")


@pytest.fixture
def two_chats(site, open_page):
    page = open_page(site.url)
    say(page, "first question")
    expect(answer_of(page)).to_have_text("Hello world")
    page.get_by_role("button", name="New chat").click()
    say(page, "second question")
    expect(titles(page)).to_have_text(["second question", "first question"])
    expect(page.get_by_role("button", name="Try again")).to_be_visible()
    return page


def test_conversations_are_listed_the_latest_first_and_opened(two_chats):
    page = two_chats
    titles(page).filter(has_text="first").click()
    expect(questions(page)).to_have_text("first question")
    expect(titles(page).filter(has_text="first")).to_have_attribute("aria-current", "true")
    say(page, "and more")
    expect(titles(page)).to_have_text(["first question", "second question"])
    page.reload()
    expect(questions(page)).to_have_text(["first question", "and more"])
    expect(titles(page)).to_have_text(["first question", "second question"])


def test_a_conversation_is_renamed(two_chats):
    page = two_chats
    page.get_by_role("button", name="Rename “second question”").click()
    page.get_by_label("Title of the conversation").fill(HOSTILE_TITLE)
    page.keyboard.press("Enter")
    expect(titles(page)).to_have_text([HOSTILE_TITLE, "first question"])
    page.get_by_role("button", name="Rename “").click()
    page.get_by_label("Title of the conversation").fill("never mind")
    page.keyboard.press("Escape")
    page.reload()
    expect(titles(page)).to_have_text([HOSTILE_TITLE, "first question"])
    assert page.locator("img").count() == 0
    assert page.title() != "taken"


def test_a_conversation_is_deleted_once_that_is_confirmed(two_chats):
    page = two_chats
    page.get_by_role("button", name="Delete “second question”").click()
    page.get_by_role("button", name="Cancel").click()
    expect(titles(page)).to_have_count(2)
    page.get_by_role("button", name="Delete “second question”").click()
    expect(page.get_by_role("dialog")).to_contain_text("second question")
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(titles(page)).to_have_text(["first question"])
    expect(page.locator("#messages li")).to_have_count(0)
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    page.reload()
    expect(titles(page)).to_have_text(["first question"])


def test_all_conversations_are_exported_and_imported_beside_those_that_are_there(two_chats, tmp_path):
    page = two_chats
    with page.expect_download() as download:
        page.get_by_role("button", name="Export all").click()
    path = tmp_path / "all.json"
    download.value.save_as(path)
    page.locator("#file").set_input_files(path)
    expect(titles(page)).to_have_count(4)
    expect(questions(page)).to_have_text("second question")
    expect(answer_of(page)).to_have_text("Hello world")


def test_an_edited_question_is_a_branch_and_the_earlier_one_stays(site, open_page):
    page = open_page(site.url)
    say(page, "one")
    expect(page.get_by_role("button", name="Try again")).to_be_visible()
    say(page, "two")
    expect(page.get_by_role("button", name="Try again")).to_be_visible()
    expect(questions(page)).to_have_text(["one", "two"])
    answer_with(site, "The quick brown fox")
    page.get_by_role("button", name="Edit").first.click()
    page.get_by_label("Edit the message").fill("another one")
    page.keyboard.press("Enter")
    expect(questions(page)).to_have_text(["another one"])
    expect(answer_of(page)).to_have_text("The quick brown fox")
    expect(page.get_by_role("group", name="Version 2 of 2")).to_be_visible()
    page.get_by_role("button", name="Previous version").click()
    expect(questions(page)).to_have_text(["one", "two"])
    page.reload()
    expect(questions(page)).to_have_text(["one", "two"])
    page.get_by_role("button", name="Next version").click()
    expect(questions(page)).to_have_text(["another one"])


def test_another_try_keeps_the_answer_before(site, open_page):
    page = open_page(site.url)
    say(page)
    expect(answer_of(page)).to_have_text("Hello world")
    answer_with(site, "The quick brown fox")
    page.get_by_role("button", name="Try again").click()
    expect(answer_of(page)).to_have_text("The quick brown fox")
    page.get_by_role("button", name="Previous version").click()
    expect(answer_of(page)).to_have_text("Hello world")
    with page.expect_request("**/chat/completions") as sent:
        say(page, "next")
    assert [message["content"] for message in sent.value.post_data_json["messages"]] == ["hi", "Hello world", "next"]


def test_an_answer_cut_off_by_a_reload_is_kept_as_far_as_it_came(site, open_page):
    site.engine.script = [*tokens("The quick brown fox " * 8), STALL]
    site.engine.pace_s = 0.05
    page = open_page(site.url)
    say(page)
    wait_until(lambda: page.evaluate(STORED_ANSWERS))
    page.reload()
    expect(answer_of(page)).to_contain_text("The quick brown fox")
    expect(page.locator(".assistant .facts")).to_contain_text("cut off when the page was closed")


def test_a_draft_survives_a_reload(site, open_page):
    page = open_page(site.url)
    page.get_by_label("Message", exact=True).fill("half a thou")
    page.reload()
    expect(page.get_by_label("Message", exact=True)).to_have_value("half a thou")


def test_five_hundred_conversations_are_all_there_and_found_by_title(site, open_page):
    page = open_page(site.url)
    page.evaluate(WRITE_MANY, MANY)
    page.reload()
    expect(titles(page)).to_have_count(MANY)
    expect(titles(page).first).to_have_text(f"Chat {MANY - 1}")
    page.get_by_label("Search conversations").fill("chat 77")
    titles(page).filter(has_text="Chat 77").click()
    expect(questions(page)).to_have_text("Question 77")
    page.get_by_label("Search conversations").fill("")
    expect(titles(page)).to_have_count(MANY)


def test_two_tabs_add_to_one_conversation_and_neither_loses_a_word(site, open_page):
    page = open_page(site.url)
    say(page, "shared")
    expect(page.get_by_role("button", name="Try again")).to_be_visible()
    other = page.context.new_page()
    other.goto(site.url)
    titles(other).click()
    expect(questions(other)).to_have_text("shared")
    site.engine.script = [*tokens("Hello world"), STALL]
    for tab, text in ((page, "from the first"), (other, "from the second")):
        say(tab, text)
        expect(questions(tab)).to_have_text(["shared", text])
        expect(answer_of(tab)).to_have_text("Hello world")
    for tab in (page, other):
        tab.get_by_role("button", name="Stop").click()
        expect(tab.get_by_role("button", name="Try again")).to_be_visible()
    page.reload()
    expect(page.get_by_role("group", name="of 2")).to_be_visible()
    seen = {questions(page).last.inner_text()}
    page.get_by_role("group", name="of 2").get_by_role("button", disabled=False).click()
    expect(questions(page).last).not_to_have_text(seen.pop())
    expect(answer_of(page)).to_have_text("Hello world")


def test_what_one_tab_asks_appears_in_the_other(site, open_page):
    page = open_page(site.url)
    say(page, "shared")
    expect(page.get_by_role("button", name="Try again")).to_be_visible()
    other = page.context.new_page()
    other.goto(site.url)
    titles(other).click()
    say(page, "more")
    expect(questions(other)).to_have_text(["shared", "more"])
    page.get_by_role("button", name="Rename").click()
    page.get_by_label("Title of the conversation").fill("renamed")
    page.keyboard.press("Enter")
    expect(titles(other)).to_have_text("renamed")
    say(other, "and again")
    expect(questions(page)).to_have_text(["shared", "more", "and again"])
    expect(titles(page)).to_have_text("renamed")


def test_a_conversation_deleted_in_another_tab_stays_in_sight_and_is_kept_by_the_next_message(two_chats, site):
    page = two_chats
    other = page.context.new_page()
    other.goto(site.url)
    titles(other).filter(has_text="second").click()
    other.get_by_role("button", name="Delete “second question”").click()
    other.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("was deleted in another tab")
    expect(questions(page)).to_have_text("second question")
    say(page, "go on")
    expect(titles(other)).to_have_text(["second question", "first question"])
    page.reload()
    expect(questions(page)).to_have_text(["second question", "go on"])


def test_a_full_store_is_said_and_nothing_is_lost(site, open_page, tmp_path):
    page = open_page(site.url)
    devtools = page.context.new_cdp_session(page)
    devtools.send("Storage.overrideQuotaForOrigin", {"origin": site.url, "quotaSize": 1})
    say(page, "small")
    full = page.get_by_role("alert").filter(has_text="store is full")
    expect(full).to_be_visible()
    expect(answer_of(page)).to_have_text("Hello world")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export “small”").click()
    download.value.save_as(tmp_path / "saved.json")
    [conversation] = json.loads((tmp_path / "saved.json").read_text())["conversations"]
    assert [message["role"] for message in conversation["messages"]] == ["user", "assistant"]
    devtools.send("Storage.overrideQuotaForOrigin", {"origin": site.url})
    say(page, "after")
    expect(full).to_be_hidden()
    expect(page.get_by_role("button", name="Try again")).to_be_visible()
    page.reload()
    expect(questions(page)).to_have_text(["small", "after"])


def test_data_of_a_newer_version_is_left_alone_and_that_is_said(site, open_page):
    page = open_page(f"{site.url}docs")
    page.evaluate("""() => new Promise((resolve) => {
      const opening = indexedDB.open("levserve", 99);
      opening.onupgradeneeded = () => opening.result.createObjectStore("newer").put("precious", 1);
      opening.onsuccess = () => { opening.result.close(); resolve(); };
    })""")
    page.goto(site.url)
    expect(page.get_by_role("alert")).to_contain_text("A newer version of this page")
    say(page)
    expect(answer_of(page)).to_have_text("Hello world")
    assert (
        page.evaluate("""() => new Promise((resolve) => {
      const opening = indexedDB.open("levserve");
      opening.onsuccess = () => {
        const reading = opening.result.transaction("newer").objectStore("newer").get(1);
        reading.onsuccess = () => resolve(reading.result);
      };
    })""")
        == "precious"
    )


def test_a_newer_version_in_another_tab_takes_the_store_over_and_that_is_said(site, open_page):
    page = open_page(site.url)
    say(page)
    expect(answer_of(page)).to_have_text("Hello world")
    other = page.context.new_page()
    other.goto(f"{site.url}docs")
    other.evaluate(OPEN_A_NEWER_STORE)
    expect(page.get_by_role("alert")).to_contain_text("Reload this one")


def test_a_conversation_of_the_page_before_is_kept(site, open_page):
    page = open_page(f"{site.url}docs")
    earlier = {
        "format": "levserve-conversation",
        "version": 1,
        "model": "m",
        "system": "Be brief.",
        "schema": "",
        "options": {"temperature": "0.5"},
        "messages": [{"role": "user", "content": "old"}, {"role": "assistant", "content": "answer"}],
    }
    page.evaluate("(text) => sessionStorage.setItem('levserve.conversation', text)", json.dumps(earlier))
    page.goto(site.url)
    expect(questions(page)).to_have_text("old")
    expect(answer_of(page)).to_have_text("answer")
    expect(titles(page)).to_have_text("old")
    page.reload()
    expect(questions(page)).to_have_text("old")
    page.get_by_role("button", name="Options").click()
    expect(page.get_by_label("Temperature", exact=True)).to_have_value("0.5")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "it is not JSON"),
        ('{"format": "other"}', "it is not an exported conversation"),
        ('{"format": "levserve-conversations", "version": 3}', "a newer version of this page has written it"),
        (
            '{"format": "levserve-conversations", "version": 2, "conversations": [{"messages": [{}]}]}',
            "messages are damaged",
        ),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_with_the_reason(site, open_page, tmp_path, text, reason):
    page = open_page(site.url)
    path = tmp_path / "file.json"
    path.write_text(text)
    page.locator("#file").set_input_files(path)
    expect(page.get_by_role("alert")).to_contain_text("file.json cannot be opened: ")
    expect(page.get_by_role("alert")).to_contain_text(reason)


def test_a_hostile_file_is_shown_inert_and_its_circles_have_an_end(site, open_page, tmp_path):
    page = open_page(site.url)
    messages = [
        {"id": 1, "parent": 2, "role": "user", "content": HOSTILE_TITLE},
        {
            "id": 2,
            "parent": 1,
            "role": "assistant",
            "content": HOSTILE_TITLE,
            "model": HOSTILE_TITLE,
            "error": HOSTILE_TITLE,
            "facts": {"rate": "<b>", "reason": "<b>"},
        },
    ]
    path = tmp_path / "file.json"
    file = {
        "format": "levserve-conversations",
        "version": 2,
        "conversations": [{"title": HOSTILE_TITLE, "leaf": 2, "messages": messages}],
    }
    path.write_text(json.dumps(file))
    page.locator("#file").set_input_files(path)
    expect(questions(page)).to_have_text(HOSTILE_TITLE)
    expect(page.locator("li.assistant h2")).to_have_text(HOSTILE_TITLE)
    assert page.locator("img, #messages b").count() == 0
    assert page.title() != "taken"


def test_a_model_is_picked_and_stays_picked(site, open_page):
    [first] = site.service.readiness.listed()
    second = replace(first, names=("other-model",))
    site.service.readiness.listed = lambda: [first, second]
    page = open_page(site.url)
    page.get_by_label("Model", exact=True).select_option("other-model")
    expect(page.locator("#welcome-model")).to_have_text("other-model")
    page.reload()
    expect(page.get_by_label("Model", exact=True)).to_have_value("other-model")
    with page.expect_request("**/chat/completions") as sent:
        say(page)
    assert sent.value.post_data_json["model"] == "other-model"


def test_the_newest_words_are_one_step_away_for_those_who_scrolled_up(site, open_page):
    answer_with(site, "Hello\n\n" * 60)
    page = open_page(site.url)
    say(page)
    expect(page.get_by_role("button", name="Try again")).to_be_in_viewport()
    page.locator("#scroll").evaluate("(box) => box.scrollTo(0, 0)")
    page.get_by_role("button", name="To the newest").click()
    expect(page.get_by_role("button", name="Try again")).to_be_in_viewport()
    expect(page.get_by_role("button", name="To the newest")).to_be_hidden()
