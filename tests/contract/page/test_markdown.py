"""Answers as Markdown, with what a model may write to harm a page."""

import json
import threading

import pytest
from playwright.sync_api import expect

from service.engine.request import FinishReason
from tests.api.scripted_engine import tokens
from tests.contract.page.test_chat_page import answer_of, say

SAMPLE = """\
# Weather

Tomorrow it is **sunny**, and *warm*; see [the forecast](https://weather.example/today).

| city | °C |
|:-----|---:|
| Oslo | 12 |
| Rome | 24 |

1. pack
2. go
   - by train

> as they say

```python
def area(r):
    return 3.14 * r  # about
```
"""


@pytest.fixture
def answers_with(site, open_page):
    """Open the page and have the service answer with a text in one event."""

    def show(text):
        page = open_page(site.url)
        delta = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None}]}
        end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        stream = "".join(f"data: {event}\n\n" for event in (json.dumps(delta), json.dumps(end), "[DONE]"))
        page.route("**/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=stream))
        say(page)
        expect(page.get_by_role("button", name="Try again")).to_be_visible()
        return page

    return show


def test_markdown_becomes_headings_tables_lists_and_code(answers_with):
    answer = answer_of(answers_with(SAMPLE))
    expect(answer.get_by_role("heading", level=3)).to_have_text("Weather")
    expect(answer.get_by_role("cell")).to_have_text(["Oslo", "12", "Rome", "24"])
    expect(answer.get_by_role("cell", name="12")).to_have_css("text-align", "right")
    expect(answer.locator("ol > li > ul > li")).to_have_text("by train")
    expect(answer.locator("blockquote")).to_have_text("as they say")
    expect(answer.locator("strong")).to_have_text("sunny")
    link = answer.get_by_role("link", name="the forecast")
    assert link.get_attribute("href") == "https://weather.example/today"
    assert link.get_attribute("rel") == "noopener noreferrer"
    code = answer.locator(".code")
    expect(code.locator(".bar")).to_contain_text("python")
    expect(code.locator("code")).to_have_text("def area(r):\n    return 3.14 * r  # about")
    expect(code.locator(".hljs-keyword")).to_have_text(["def", "return"])


def test_code_is_copied_as_it_was_written(answers_with):
    page = answers_with(SAMPLE)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy the code").click()
    expect(page.get_by_role("status").filter(has_text="Copied.")).to_have_count(1)
    assert page.evaluate("navigator.clipboard.readText()") == "def area(r):\n    return 3.14 * r  # about"


def test_blocks_that_are_complete_stay_while_the_answer_grows(site, open_page):
    is_seen = threading.Event()

    def script():
        yield from tokens("first\n\nsec")
        while not is_seen.is_set():
            yield ()
        yield from tokens("ond\n\nthird")
        yield FinishReason.STOP

    site.engine.script, site.engine.pace_s = script(), 0.01
    page = open_page(site.url)
    say(page)
    expect(answer_of(page).locator("p")).to_have_text(["first", "sec"])
    page.evaluate("window.first = document.querySelector('.assistant .text p')")
    is_seen.set()
    expect(answer_of(page).locator("p")).to_have_text(["first", "second", "third"])
    assert page.evaluate("window.first.isConnected")


@pytest.mark.parametrize(
    "text",
    [
        "<script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">",
        "[click](javascript:document.title='taken') ![image](https://evil.example/x.png) <https://evil.example/>",
        "[a](data:text/html,<script>1</script>) [b](vbscript:x) [c](JaVaScRiPt&#58;alert(1)) [d]( java\tscript:x)",
        '<iframe src="https://evil.example"></iframe>\n\n<style>body { display: none }</style>\n\n<form action=x>',
        "```html\n</code></pre><script>document.title = 'taken'</script>\n```",
        '```"><img/src=x>\nx\n```',
        "[x]: https://evil.example\n\n[x] &lt;b&gt; <b onclick=x>",
    ],
)
def test_markup_and_addresses_in_an_answer_are_inert(answers_with, text):
    page = answers_with(text)
    answer = answer_of(page)
    assert answer.locator("script, img, iframe, style, form, b, object, [onerror], [onclick], [src]").count() == 0
    for link in answer.locator("a").all():
        assert link.get_attribute("href").startswith("https://evil.example")
        assert link.get_attribute("rel") == "noopener noreferrer"
    assert page.title() != "taken"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("x" * 100_000, id="one word"),
        pytest.param("a b " * 25_000, id="one line"),
        pytest.param("```js\n" + "x = '" * 20_000, id="open code"),
        pytest.param("```js\n" + "f(/" * 15_000 + "\n```", id="code"),
        pytest.param(">" * 100_000, id="quotes"),
        pytest.param("> " * 300 + "deep", id="deep quotes"),
        pytest.param("[" * 100_000, id="brackets"),
        pytest.param("![a](" * 20_000, id="images"),
        pytest.param("*a " * 33_000, id="stars"),
        pytest.param("**a _b " * 14_000, id="mixed stars"),
        pytest.param("`" + "a`` " * 25_000, id="ticks"),
        pytest.param("$a " * 33_000, id="dollars"),
        pytest.param(r"\(a " * 25_000, id="parentheses"),
        pytest.param("$$a\n\n" * 20_000, id="open blocks"),
        pytest.param("|a" * 50_000 + "\n" + "|-" * 50_000 + "\n", id="columns"),
        pytest.param("- " * 50_000, id="lists"),
        pytest.param("\n".join(f"{' ' * index}- deep" for index in range(300)), id="deep lists"),
        pytest.param("&" * 100_000, id="entities"),
        pytest.param("<a " * 33_000, id="tags"),
        pytest.param('{"a":' * 20_000, id="json"),
        pytest.param("[a]: x\n" * 14_000, id="references"),
        pytest.param("\u202e\u0000\u200b\ud7ff" * 25_000, id="controls"),
    ],
)
@pytest.mark.slow
def test_an_endless_or_broken_answer_leaves_the_page_usable(answers_with, text):
    page = answers_with(text)
    page.get_by_label("Message", exact=True).fill("still here")
    expect(page.get_by_label("Message", exact=True)).to_have_value("still here")
    if "deep" in text:
        expect(answer_of(page)).to_contain_text("deep")


def test_numbers_of_a_json_answer_keep_their_digits(answers_with):
    answer = answer_of(answers_with('{"id": 12345678901234567890}'))
    expect(answer.locator("code")).to_have_text('{"id": 12345678901234567890}')


def test_a_json_answer_is_laid_out(answers_with):
    answer = answer_of(answers_with('{"a": 1, "b": "x  y"}'))
    expect(answer.locator("code")).to_have_text('{\n  "a": 1,\n  "b": "x  y"\n}')


def test_a_table_on_a_phone_scrolls_within_itself_and_leaves_its_lines_long(answers_with):
    cells = [f"what people say of number {i}" for i in range(6)]
    page = answers_with("".join(f"| {' | '.join(row)} |\n" for row in (cells, ["---"] * 6, cells)))
    page.set_viewport_size({"width": 390, "height": 800})
    table = answer_of(page).locator(".wide")
    assert table.evaluate("(box) => box.scrollWidth > box.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert answer_of(page).evaluate("(box) => box.scrollWidth <= box.clientWidth")
    assert table.locator("td").first.evaluate("(cell) => cell.clientHeight") < 80, "two lines, and not a word on each"
