"""The address of each conversation: Back and Forward, a reload, another tab, and one that is not there."""

from playwright.sync_api import expect

from tests.contract.page.test_accessibility import violations
from tests.contract.page.test_chat_page import answer_of, say
from tests.contract.page.test_conversations import questions, titles, two_chats

__all__ = ["two_chats"]


def test_back_and_forward_lead_through_the_conversations(two_chats, site):
    page = two_chats
    second = page.url
    assert second != site.url
    titles(page).filter(has_text="first").click()
    expect(questions(page)).to_have_text("first question")
    first = page.url
    page.get_by_role("button", name="New chat").click()
    expect(page).to_have_url(site.url)
    page.go_back()
    expect(questions(page)).to_have_text("first question")
    expect(page).to_have_url(first)
    expect(page).to_have_title("first question · Levserve")
    page.go_back()
    expect(questions(page)).to_have_text("second question")
    page.go_forward()
    expect(questions(page)).to_have_text("first question")
    page.go_forward()
    expect(page.get_by_role("heading", name="Talk to the model")).to_be_visible()


def test_a_first_question_takes_the_place_of_the_new_chat_in_the_history(two_chats):
    page = two_chats
    page.go_back()
    expect(questions(page)).to_have_text("first question")
    expect(titles(page).filter(has_text="first")).to_have_attribute("aria-current", "true")


def test_an_address_opens_its_conversation_in_another_tab(two_chats):
    page = two_chats
    other = page.context.new_page()
    other.goto(page.url)
    expect(questions(other)).to_have_text("second question")
    other.reload()
    expect(questions(other)).to_have_text("second question")


def test_an_address_of_nothing_says_so_and_is_a_new_chat(two_chats, site):
    page = two_chats
    page.get_by_role("button", name="Delete “second").click()
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(titles(page)).to_have_text(["first question"])
    page.go_back()
    stale = page.get_by_role("alert").filter(has_text="not in this browser")
    expect(stale).to_be_visible()
    expect(page.locator("#messages li")).to_have_count(0)
    assert violations(page) == []
    page.reload()
    expect(stale).to_be_visible()
    say(page, "go on")
    expect(answer_of(page)).to_have_text("Hello world")
    expect(titles(page)).to_have_text(["go on", "first question"])
    page.go_back()
    expect(questions(page)).to_have_text("first question")
    expect(stale).to_be_hidden()

    for address in ("#/chat/", "#/chat/%E0%A4%A", "#/chat/<img src=x>"):
        page.goto(site.url + address)
        expect(stale).to_be_visible()
