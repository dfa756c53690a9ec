"""The page of a process whose model hears: a file, the microphone, and what goes wrong."""

import pytest
from playwright.sync_api import expect

from tests.api.hearing.scripted_speech import SECOND
from tests.contract.page.site import hearing_service, running_site
from tests.contract.page.test_accessibility import LOOKS, fits, violations


@pytest.fixture
def hearing_site():
    with running_site(hearing_service) as site:
        yield site


def choose(page, content):
    page.get_by_label("Recording").set_input_files({"name": "a.wav", "mimeType": "audio/wav", "buffer": content})
    page.get_by_role("button", name="Write it down", exact=True).click()


@pytest.mark.parametrize(("size", "scheme"), LOOKS[:2])
def test_a_file_is_written_down_instead_of_a_chat(hearing_site, open_page, size, scheme):
    page = open_page(hearing_site.url, color_scheme=scheme, **size)
    expect(page).to_have_url(f"{hearing_site.url}hear")
    choose(page, SECOND)
    expect(page.locator("#text")).to_have_text("Hello world")
    expect(page.locator("#facts")).to_contain_text("1.0 s of sound")
    expect(page.get_by_role("link", name="Chat")).to_be_hidden()
    assert violations(page) == []
    assert fits(page)


@pytest.mark.slow
def test_the_microphone_is_written_down(hearing_site, open_page):
    page = open_page(f"{hearing_site.url}hear")
    page.get_by_role("button", name="Record", exact=True).click()
    expect(page.get_by_role("button", name="Stop and write it down")).to_be_visible()
    page.wait_for_timeout(600)
    page.get_by_role("button", name="Stop and write it down").click()
    expect(page.locator("#text")).to_have_text("Hello world")


@pytest.mark.slow
def test_what_is_no_recording_is_refused_where_it_was_chosen(hearing_site, open_page):
    page = open_page(f"{hearing_site.url}hear")
    choose(page, b"text")
    expect(page.get_by_role("alert")).to_contain_text("no supported format")
    choose(page, SECOND)
    expect(page.locator("#text")).to_have_text("Hello world")
    expect(page.get_by_role("alert")).to_be_hidden()
