"""The page while the model comes up."""

from playwright.sync_api import expect


def test_it_shows_the_start_as_it_happens_and_opens_the_chat_by_itself(site, open_page):
    site.begin_start()
    page = open_page(site.url)
    expect(page.get_by_role("heading", name="The model is starting")).to_be_visible()
    expect(page.locator("#phases")).to_contain_text("4.6 MB of 12.0 MB")
    expect(page.locator("#phases")).to_contain_text("7 of 24")
    expect(page.locator("#left")).to_have_text("44 %complete in about 3.0 s")
    assert page.get_by_role("progressbar").get_attribute("value") == "44"
    states = [row.get_attribute("data-state") for row in page.locator("#phases li").all()]
    assert states == ["done", "done", "running", "waiting", "running", "waiting"]
    expect(page.get_by_label("Message", exact=True)).to_be_hidden()

    site.begin_start(percent=91, executables_done=20)
    expect(page.locator("#phases")).to_contain_text("20 of 24")
    site.finish_start()
    expect(page.get_by_role("heading", name="Talk to the model")).to_be_visible()
    expect(page.get_by_label("Message", exact=True)).to_be_focused()
    expect(page.get_by_role("status").filter(has_text="The model is ready.")).to_have_count(1)


def test_a_start_of_unknown_length_shows_no_figure_that_nobody_knows(site, open_page):
    site.begin_start(percent=None, estimated_seconds_left=None, bytes_total=0, executables_total=0, executables_done=0)
    page = open_page(site.url)
    expect(page.locator("#left")).to_have_text("2.4 s so far")
    assert page.get_by_role("progressbar").get_attribute("value") is None
    expect(page.locator("#phases")).not_to_contain_text(" of ")


def test_it_says_that_executables_are_still_compiling(site, open_page):
    site.finish_start("answering", executables_done=20)
    page = open_page(site.url)
    expect(page.locator("#state")).to_have_text("org/small-chat, 4 executables still compiling")
    site.finish_start()
    expect(page.locator("#state")).to_have_text("org/small-chat")


def test_a_conversation_outlives_a_restart_of_the_service(site, open_page):
    page = open_page(site.url)
    page.get_by_label("Message", exact=True).fill("hi")
    page.keyboard.press("Enter")
    expect(page.locator("li.assistant .text")).to_have_text("Hello world")
    expect(page.get_by_role("status").filter(has_text="Answer complete.")).to_have_count(1)  # and kept
    page.reload()
    expect(page.locator("li.assistant .text")).to_have_text("Hello world")
