"""The dialog before something is deleted: keys, focus, and what happens behind it."""

from playwright.sync_api import expect

from tests.contract.page.test_conversations import titles, two_chats

__all__ = ["two_chats"]


def focused(page):
    return page.evaluate("document.activeElement.textContent")


def test_the_focus_stays_in_the_dialog_and_comes_back(two_chats):
    page = two_chats
    asked = []
    page.on("dialog", lambda dialog: asked.append(dialog.message))
    delete = page.get_by_role("button", name="Delete “second")
    delete.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Delete this conversation?")
    expect(dialog).to_contain_text("“second question” is deleted from this browser")
    assert focused(page) == "Cancel"
    seen = []
    for key in ("Tab", "Tab", "Tab", "Shift+Tab", "Shift+Tab"):
        page.keyboard.press(key)
        seen.append(focused(page))
    assert seen == ["Delete", "Cancel", "Delete", "Cancel", "Delete"]
    page.evaluate("renderConversations()")  # as a write in another tab has it
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(delete).to_be_focused()
    expect(titles(page)).to_have_count(2)
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(titles(page)).to_have_text(["first question"])
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    assert asked == []
