"""Images of a chat: chosen, pasted and dropped, sent as parts, shown in the conversation, kept, edited and exported."""

import base64
import json

import pytest
from playwright.sync_api import expect

from tests.api.test_seeing import service_of
from tests.contract.page.site import running_site
from tests.contract.page.test_accessibility import LOOKS, fits, violations
from tests.contract.page.test_chat_page import answer_of, say, wait_until
from tests.media.image_files import drawing, image_file

# Put a file where a paste or a drop would have it.
TRANSFER = """([event, target, content, name]) => {
  const bytes = Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0)), transfer = new DataTransfer();
  transfer.items.add(new File([bytes], name, { type: "image/png" }));
  const init = { bubbles: true, cancelable: true, clipboardData: transfer, dataTransfer: transfer };
  const made = event === "paste" ? new ClipboardEvent(event, init) : new DragEvent(event, init);
  document.querySelector(target).dispatchEvent(made);
}"""


def seeing_service(_folder, **settings):
    return service_of(**settings)


@pytest.fixture
def seeing_site():
    with running_site(seeing_service) as site:
        yield site
        site.service.fastapi.state.context.media.end()


def choose(page, *contents):
    files = [{"name": f"{number}.png", "mimeType": "image/png", "buffer": c} for number, c in enumerate(contents)]
    page.get_by_label("Images for the message").set_input_files(files)


def transfer(page, event, target, content):
    page.evaluate(TRANSFER, [event, target, base64.b64encode(content).decode(), "a.png"])


def attached(page):
    return page.get_by_role("list", name="Images of the message").get_by_role("img")


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_images_are_attached_in_every_way_sent_and_shown(seeing_site, open_page, size, scheme):
    sent = []
    page = open_page(seeing_site.url, color_scheme=scheme, **size)
    page.on("request", lambda request: sent.append(request) if request.method == "POST" else None)
    expect(page.get_by_role("button", name="Image", exact=True)).to_be_visible()
    choose(page, image_file("PNG"))
    transfer(page, "paste", "#draft", image_file("PNG", drawing(20, 30)))
    transfer(page, "drop", "main", image_file("PNG", drawing(30, 20)))
    expect(attached(page)).to_have_count(3)
    page.get_by_role("button", name="Remove image 2").click()
    expect(attached(page)).to_have_count(2)
    assert violations(page) == []
    assert fits(page)
    say(page, "What is it?")
    expect(page.get_by_role("button", name="Try again")).to_be_visible()
    expect(answer_of(page)).not_to_be_empty()
    expect(attached(page)).to_have_count(0)
    expect(page.locator("li.user").get_by_role("img")).to_have_count(2)
    parts = json.loads(sent[-1].post_data)["messages"][-1]["content"]
    assert [part["type"] for part in parts] == ["image_url", "image_url", "text"]
    assert parts[0]["image_url"]["url"] == f"data:image/png;base64,{base64.b64encode(image_file('PNG')).decode()}"
    assert violations(page) == []
    assert fits(page)

    page.reload()
    expect(page.locator("li.user").get_by_role("img")).to_have_count(2)
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Edit the message").fill("And now?")
    page.get_by_role("button", name="Send", exact=True).first.click()
    wait_until(lambda: len(sent) == 2)
    assert json.loads(sent[-1].post_data)["messages"][-1]["content"][:2] == parts[:2]


def test_a_large_image_is_made_smaller_before_it_is_sent(seeing_site, open_page):
    page = open_page(seeing_site.url)
    large = image_file("PNG", drawing(2400, 1200).effect_spread(60))
    assert len(large) > 600_000
    choose(page, large)
    expect(attached(page)).to_have_count(1)
    url, width, height = attached(page).evaluate("image => [image.src, image.naturalWidth, image.naturalHeight]")
    assert url.startswith("data:image/jpeg;base64,")
    assert (width, height) == (1536, 768)


def test_what_is_no_image_is_told_and_a_model_of_text_takes_none(seeing_site, site, open_page):
    page = open_page(seeing_site.url)
    expect(page.get_by_role("button", name="Image", exact=True)).to_be_visible()
    transfer(page, "drop", "main", b"no image" * 100_000)
    expect(page.get_by_role("alert")).to_contain_text("cannot be read as an image")
    expect(attached(page)).to_have_count(0)
    page = open_page(site.url)
    expect(page.get_by_label("Message", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Image", exact=True)).to_be_hidden()
    transfer(page, "drop", "main", image_file("PNG"))
    expect(page.get_by_role("alert")).to_contain_text("reads only text")
