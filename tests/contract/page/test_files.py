"""Files whose text goes with a message: what is attached, what is pasted as text, and what cannot be read."""

import base64
import json

import pytest
from playwright.sync_api import expect

from tests.contract.page.site import running_site
from tests.contract.page.test_accessibility import LOOKS, fits, violations
from tests.contract.page.test_chat_page import answer_of, say, wait_until
from tests.contract.page.test_conversations import questions, titles
from tests.contract.page.test_images import attached as images
from tests.contract.page.test_images import seeing_service
from tests.media.image_files import image_file
from tests.media.pdf_files import pdf, picture_pdf

# What a clipboard holds: texts by their types, and files. Returns whether the browser would paste the text.
PASTE = """([target, event, texts, files]) => {
  const transfer = new DataTransfer();
  for (const [type, text] of Object.entries(texts)) transfer.setData(type, text);
  for (const [name, type, content] of files) {
    transfer.items.add(new File([Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0))], name, { type }));
  }
  const init = { bubbles: true, cancelable: true, clipboardData: transfer, dataTransfer: transfer };
  const made = event === "paste" ? new ClipboardEvent(event, init) : new DragEvent(event, init);
  return document.querySelector(target).dispatchEvent(made);
}"""
PICTURE = ("image.png", "image/png", base64.b64encode(image_file("PNG")).decode())
CELLS = {"text/plain": "a\t1\r\nb\t2\r\n", "text/html": "<table><tr><td>a</td><td>1</td></tr></table>"}


@pytest.fixture
def seeing_site():
    with running_site(seeing_service) as site:
        yield site
        site.service.fastapi.state.context.media.end()


@pytest.fixture
def reading_site(site):
    yield site
    site.service.fastapi.state.context.media.end()


def choose(page, *files):
    page.get_by_label("Files for the message").set_input_files(
        [{"name": name, "mimeType": "", "buffer": content} for name, content in files]
    )


def attached(page):
    return page.get_by_role("list", name="Files of the message").get_by_role("listitem")


def paste(page, texts, *files, event="paste", target="#draft"):
    return page.evaluate(PASTE, [target, event, texts, list(files)])


@pytest.mark.parametrize(
    ("texts", "files", "is_text"),
    [
        pytest.param(CELLS, [PICTURE], True, id="cells with a picture of them"),
        pytest.param({"text/plain": "words"}, [PICTURE], True, id="words with a picture of them"),
        pytest.param({}, [PICTURE], False, id="a picture"),
        pytest.param({"text/html": "<img src='x'>"}, [PICTURE], False, id="a picture of a page"),
        pytest.param({"text/plain": "image.png"}, [PICTURE], False, id="a file with its name"),
        pytest.param({"text/plain": "file:///home/me/image.png\n"}, [PICTURE], False, id="a file with its address"),
        pytest.param({"text/plain": " \t\n"}, [PICTURE], False, id="empty cells"),
    ],
)
def test_a_text_is_pasted_as_text_though_a_picture_of_it_is_there_too(seeing_site, open_page, texts, files, is_text):
    page = open_page(seeing_site.url)
    expect(page.get_by_role("button", name="Image", exact=True)).to_be_visible()
    assert paste(page, texts, *files) is is_text
    expect(images(page)).to_have_count(0 if is_text else len(files))


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
@pytest.mark.slow
def test_texts_and_pdfs_are_attached_sent_kept_and_found(reading_site, open_page, size, scheme):
    sent = []
    page = open_page(reading_site.url, color_scheme=scheme, **size)
    page.on("request", lambda request: sent.append(request) if "completions" in request.url else None)
    expect(page.get_by_label("Message", exact=True)).to_be_visible()
    choose(page, ("notes of a long afternoon in the archive.md", b"# Notes\n"), ("table.csv", "ä;1".encode("latin1")))
    paste(page, {}, ("paper.pdf", "", base64.b64encode(pdf("Needle one", "Page two")).decode()), event="drop")
    expect(attached(page)).to_have_count(3)
    expect(attached(page).last).to_contain_text("20 characters")
    page.get_by_role("button", name="Remove table.csv").click()
    expect(attached(page)).to_have_count(2)
    assert (violations(page), fits(page)) == ([], True)
    say(page, "What is it?")
    expect(answer_of(page)).to_have_text("Hello world")
    expect(attached(page)).to_have_count(0)
    [message] = json.loads(sent[0].post_data)["messages"]
    assert message["content"] == (
        "--- File: notes of a long afternoon in the archive.md ---\n# Notes\n\n\n"
        "--- File: paper.pdf ---\nNeedle one\n\nPage two\n\nWhat is it?"
    )
    page.get_by_text("paper.pdf", exact=True).click()
    expect(page.locator("li.user pre").last).to_have_text("Needle one\n\nPage two")
    assert (violations(page), fits(page)) == ([], True)

    page.reload()
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Edit the message").fill("And now?")
    page.get_by_role("button", name="Send", exact=True).first.click()
    wait_until(lambda: len(sent) == 2)
    assert "Needle one" in json.loads(sent[1].post_data)["messages"][-1]["content"]
    if size:
        page.get_by_role("button", name="Chats").click()
    page.get_by_role("searchbox").fill("needle")
    expect(titles(page)).to_have_text(["What is it?"])
    expect(page.locator("#list mark")).to_have_text("Needle")


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        pytest.param("scan.pdf", picture_pdf(), "has no text", id="a scan", marks=pytest.mark.slow),
        pytest.param("bad.pdf", b"%PDF-1.4 nothing", "is damaged", id="a damaged PDF", marks=pytest.mark.slow),
        pytest.param("a.zip", b"PK\x03\x04\x00\x00", "neither text nor a PDF", id="an archive"),
        pytest.param("a.txt", b" \n", "has no text", id="nothing"),
        pytest.param("a.log", b"x" * 1_000_001, "more than 1,000,000 characters", id="long", marks=pytest.mark.slow),
        pytest.param("a.bin", b"\x80\x01\x02", "neither text nor a PDF", id="bytes"),
    ],
)
def test_what_cannot_be_read_says_why_and_is_not_attached(reading_site, open_page, name, content, why):
    page = open_page(reading_site.url)
    expect(page.get_by_label("Message", exact=True)).to_be_visible()
    choose(page, (name, content), ("good.txt", b"good"))
    expect(page.get_by_role("alert").filter(has_text=why)).to_contain_text(name)
    expect(attached(page)).to_have_count(1)
    expect(attached(page)).to_contain_text("good.txt")


@pytest.mark.parametrize(
    "encoding", ["utf-16", *(pytest.param(name, marks=pytest.mark.slow) for name in ("utf-8-sig", "cp1252"))]
)
def test_a_text_is_read_in_its_encoding(site, open_page, encoding):
    page = open_page(site.url)
    expect(page.get_by_label("Message", exact=True)).to_be_visible()
    choose(page, ("a.txt", "Grüße für 5 €".encode(encoding)))
    expect(attached(page)).to_contain_text("13 characters")
    say(page, "")
    expect(page.locator("li.user pre")).to_have_text("Grüße für 5 €")
    expect(titles(page)).to_have_text(["a.txt"])


@pytest.mark.slow
def test_a_pdf_that_a_browser_has_printed_is_read(reading_site, open_page):
    page = open_page(reading_site.url)
    say(page, "Is this printed?")
    expect(answer_of(page)).to_have_text("Hello world")
    printed = page.pdf()
    choose(page, ("printed.pdf", printed))
    expect(attached(page)).to_contain_text("characters")
    say(page, "and now")
    expect(questions(page).last.locator("pre")).to_contain_text("Hello world")
