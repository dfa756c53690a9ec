"""The page of a process whose model hears: a file, the microphone, subtitles, and what goes wrong."""

import asyncio
import base64

import httpx
import pytest
from playwright.sync_api import expect

from tests.api.hearing.scripted_speech import HELLO, SECOND
from tests.api.hearing.test_audio import MINUTE
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


# Drop a file, or begin to, and tell whether the browser would have opened it instead of the page.
DROP = """([target, content, name]) => {
  const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0)), transfer = new DataTransfer();
  transfer.items.add(new File([bytes], name));
  return ["dragover", "drop"].map((event) => document.querySelector(target)
    .dispatchEvent(new DragEvent(event, { bubbles: true, cancelable: true, dataTransfer: transfer })));
}"""
IS_TAKEN = [False, False]


def drop(page, target, content=SECOND, name="a.wav"):
    return page.evaluate(DROP, [target, base64.b64encode(content).decode(), name])


def text(page):
    return page.locator("#text")


@pytest.mark.parametrize("target", ["#file", "body", "html"])
def test_a_file_that_is_dropped_anywhere_is_written_down(hearing_site, open_page, target):
    page = open_page(f"{hearing_site.url}hear")
    expect(page.get_by_label("Recording")).to_be_visible()
    assert drop(page, target) == IS_TAKEN
    expect(text(page)).to_have_text("Hello world")
    assert page.get_by_label("Recording").evaluate("(input) => input.files[0].name") == "a.wav"
    expect(page).to_have_url(f"{hearing_site.url}hear")


def test_a_file_that_is_dropped_where_nothing_hears_does_not_replace_the_page(site, open_page):
    page = open_page(f"{site.url}hear")
    expect(page.get_by_text("No model of this service hears.")).to_be_visible()
    assert drop(page, "body") == IS_TAKEN


@pytest.fixture
def held_site(hearing_site):
    """A site whose model answers one window, and is then silent."""

    async def silence():
        await asyncio.Event().wait()

    hearing_site.service.windows.script = (HELLO, silence)
    return hearing_site


def test_what_is_being_heard_can_be_stopped_and_its_text_stays(held_site, open_page):
    page = open_page(f"{held_site.url}hear")
    choose(page, MINUTE)
    expect(text(page)).to_have_text("Hello world")
    expect(page.get_by_role("button", name="Write it down", exact=True)).to_be_disabled()
    assert drop(page, "body", name="b.wav") == IS_TAKEN
    expect(page.get_by_role("alert")).to_contain_text("b.wav")
    assert violations(page) == []
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(page.locator("#facts")).to_contain_text("stopped by you")
    expect(text(page)).to_have_text("Hello world")
    expect(page.get_by_role("button", name="Stop", exact=True)).to_be_hidden()
    held_site.service.windows.script = (HELLO,)
    page.get_by_role("button", name="Write it down", exact=True).click()
    expect(page.locator("#facts")).to_contain_text("1.0 s of sound")


def test_a_transcript_is_copied(hearing_site, open_page):
    page = open_page(f"{hearing_site.url}hear")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    expect(page.get_by_role("button", name="Copy")).to_be_hidden()
    choose(page, SECOND)
    page.get_by_role("button", name="Copy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == "Hello world"


@pytest.mark.parametrize("kind", ["srt", "vtt"])
def test_subtitles_are_those_that_the_service_writes(hearing_site, open_page, tmp_path, kind):
    arrow = ((0, "Hello", " --> world", 25, 25, " again", 3700 // 2), -0.2, 0.01)
    hearing_site.service.windows.script = (arrow,)
    page = open_page(f"{hearing_site.url}hear")
    choose(page, SECOND)
    with page.expect_download() as downloaded:
        page.get_by_role("button", name=kind).click()
    assert downloaded.value.suggested_filename == f"a.{kind}"
    downloaded.value.save_as(tmp_path / "subtitles")
    fields = {"model": page.locator("#model").input_value(), "response_format": kind}
    url = f"{hearing_site.url}v1/audio/transcriptions"
    own = httpx.post(url, data=fields, files={"file": ("a.wav", SECOND)})
    assert (tmp_path / "subtitles").read_text() == own.text
    assert "-->" in own.text


def test_language_and_prompt_reach_the_model(hearing_site, open_page):
    page = open_page(f"{hearing_site.url}hear")
    page.get_by_label("Language").fill("de")
    page.get_by_label("Prompt").fill("Levserve")
    choose(page, SECOND)
    expect(text(page)).to_have_text("Hello world")
    windows = hearing_site.service.windows
    assert windows.detected == []
    assert "Levserve" in windows.model.tokenizer.backend.decode(list(windows.calls[-1][1]))
    page.get_by_label("Language").fill("klingon")
    page.get_by_role("button", name="Write it down", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("language")
