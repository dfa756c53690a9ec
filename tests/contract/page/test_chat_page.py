"""The chat: what it sends, what it shows, and how it stops."""

import json
import subprocess
import sys
import time

import pytest
from playwright.sync_api import expect

from service.engine.request import FinishReason
from service.errors import EngineError, Overloaded
from tests.api.scripted_engine import MODEL, STALL, TOKENIZER, Wait, tokens
from tests.contract.page.site import running_site


def say(page, text="hi"):
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


def answer_of(page):
    return page.locator("li.assistant .text").last


def wait_until(is_so, limit_s=20.0):
    end_s = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.01)


def open_options(page):
    if page.get_by_label("System prompt").is_hidden():
        page.get_by_role("button", name="Options").click()


def set_options(page, **options):
    open_options(page)
    for label, value in options.items():
        page.get_by_label(label.replace("_", " "), exact=True).fill(value)


def test_an_answer_streams_and_its_speed_is_shown(site, open_page):
    begin, text, wait = "The quick", "The quick brown fox", Wait()
    site.engine.script[:] = [*tokens(begin), wait, *tokens(text)[len(tokens(begin)) :], STALL]
    page = open_page(site.url)
    say(page, "What can you do?")
    expect(answer_of(page)).to_have_text(begin)
    wait.over.set()
    expect(answer_of(page)).to_have_text(text)
    expect(page.locator("li.assistant")).to_have_attribute("aria-busy", "true")
    expect(page.locator(".assistant .facts")).to_contain_text(f"{len(tokens(text))} tokens")
    expect(page.locator(".assistant .facts")).to_contain_text("tokens/s")
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".assistant .facts")).to_contain_text("stopped by you")
    wait_until(lambda: site.engine.last.is_aborted)

    site.engine.script[:] = [*tokens("Hello world"), FinishReason.STOP]
    page.get_by_role("button", name="Try again").click()
    expect(answer_of(page)).to_have_text("Hello world")
    expect(page.locator(".assistant .facts")).to_contain_text("2 tokens")
    expect(page.locator(".assistant .facts")).to_contain_text("s to the first")
    expect(page.get_by_role("button", name="Send")).to_be_visible()


def test_escape_stops_an_answer(site, open_page):
    site.engine.script[:] = [*tokens("Hello"), STALL]
    page = open_page(site.url)
    say(page)
    expect(answer_of(page)).to_have_text("Hello")
    page.keyboard.press("Escape")
    wait_until(lambda: site.engine.last.is_aborted)


def test_options_and_the_system_prompt_reach_the_engine(site, open_page):
    site.engine.script[:] = tokens("The quick brown fox")
    page = open_page(site.url)
    set_options(page, Temperature="0.5", Max_tokens="3", Top_k="7", Min_p="0.25", Seed="5", System_prompt="Be brief.")
    say(page, "one")
    expect(page.locator(".assistant .facts")).to_contain_text("reached the limit on tokens")
    request = site.engine.last.request
    options = request.sampling
    assert (options.temperature, options.top_k, options.min_p, options.seed) == (0.5, 7, 0.25, 5)
    assert request.max_tokens == 3
    say(page, "two")
    wait_until(lambda: len(site.engine.streams) == 2)
    prompt = TOKENIZER.backend.decode(site.engine.last.request.prompt_ids, skip_special_tokens=False)
    assert "system:Be brief." in prompt
    assert prompt.index("user:one") < prompt.index("assistant:The") < prompt.index("user:two")


def test_without_options_the_request_has_none(site, open_page):
    page = open_page(site.url)
    with page.expect_request("**/chat/completions") as sent:
        say(page)
    assert sent.value.post_data_json.keys() == {"model", "messages", "stream", "stream_options"}


def test_a_schema_is_sent_and_what_is_no_schema_is_refused_beside_its_box(site, open_page):
    page = open_page(site.url)
    set_options(page, JSON_schema_of_the_answer="{oops")
    say(page)
    expect(page.locator("#schema-hint")).to_contain_text("This is not a JSON schema")
    expect(page.get_by_label("JSON schema of the answer")).to_be_focused()
    assert site.engine.streams == []
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    set_options(page, JSON_schema_of_the_answer=json.dumps(schema))
    with page.expect_request("**/chat/completions") as sent:
        say(page)
    assert sent.value.post_data_json["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema, "strict": True},
    }


@pytest.mark.parametrize("refusal", [Overloaded(running=4, limit=4), None])
def test_an_error_is_shown_and_the_question_can_be_asked_again(site, open_page, refusal):
    site.engine.refusal = refusal
    site.engine.script[:] = [*tokens("Hello"), EngineError("boom")]
    page = open_page(site.url)
    say(page)
    expect(page.get_by_role("alert").last).to_contain_text("limit of 4" if refusal else "The engine failed")
    site.engine.refusal = None
    site.engine.script[:] = [*tokens("Hello world"), FinishReason.STOP]
    page.get_by_role("button", name="Try again").click()
    expect(answer_of(page)).to_have_text("Hello world")
    expect(page.locator("#messages li")).to_have_count(2)


def test_an_error_in_a_long_chat_is_in_sight(site, open_page):
    page = open_page(site.url)
    for turn in range(6):
        say(page, "A question of several lines.\n" * 5)
        expect(page.get_by_role("button", name="Try again")).to_have_count(1)
        expect(page.locator("li.assistant")).to_have_count(turn + 1)
    site.engine.refusal = Overloaded(running=4, limit=4)
    say(page, "one more")
    expect(page.get_by_role("alert").filter(has_text="limit of 4")).to_be_in_viewport(ratio=1)


def test_markup_of_the_model_is_text_and_code_stands_apart(site, open_page):
    text = "<b>bold</b> and `x < y`:\n```python\nprint(1)\n```\n**done**"
    site.engine.script[:] = [*tokens(text), FinishReason.STOP]
    page = open_page(site.url)
    say(page, "<img src=x onerror=alert(1)>")
    expect(answer_of(page).locator("pre")).to_have_text("print(1)")
    assert page.locator("#messages b, #messages img").count() == 0
    assert [code.inner_text() for code in answer_of(page).locator("p code").all()] == ["x < y"]
    expect(answer_of(page).locator("strong")).to_have_text("done")


def test_thinking_is_shown_apart_from_the_answer(site, open_page):
    page = open_page(site.url)
    deltas = [{"role": "assistant", "content": ""}, {"reasoning_content": "Hm."}, {"content": "Paris"}]
    events = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    stream = "".join(f"data: {event}\n\n" for event in [*map(json.dumps, events), "[DONE]"])
    page.route("**/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=stream))
    say(page)
    expect(answer_of(page)).to_have_text("Paris")
    expect(page.locator(".thinking p")).to_be_hidden()
    page.get_by_text("Thinking").click()
    expect(page.locator(".thinking p")).to_have_text("Hm.")


def test_a_stream_that_breaks_off_is_an_error_and_keeps_what_came(site, open_page):
    page = open_page(site.url)
    stream = 'data: {"choices": [{"index": 0, "delta": {"content": "Par"}, "finish_reason": null}]}\n\n'
    page.route("**/chat/completions", lambda route: route.fulfill(content_type="text/event-stream", body=stream))
    say(page)
    expect(answer_of(page)).to_have_text("Par")
    expect(page.get_by_role("alert").last).to_contain_text("closed before the answer was complete")


@pytest.mark.parametrize("tab", ["curl", "Python"])
def test_the_request_shown_as_code_gives_the_same_answer(site, open_page, tab):
    page = open_page(site.url)
    set_options(page, Temperature="0.5", Top_k="7", System_prompt='Don\'t say "no".')
    page.get_by_role("tab", name=tab).click()
    page.get_by_label("Message", exact=True).fill("It's a \\ test")
    code = page.locator("#code").inner_text()
    command = ["bash", "-c", code] if tab == "curl" else [sys.executable, "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    answer = json.loads(ran.stdout)["choices"][0]["message"]["content"] if tab == "curl" else ran.stdout.strip()
    assert answer == "Hello world"
    by_code = site.engine.last.request
    page.get_by_label("Message", exact=True).press("Enter")
    wait_until(lambda: len(site.engine.streams) == 2)
    by_page = site.engine.last.request
    assert by_code.prompt_ids == by_page.prompt_ids
    assert by_code.sampling.top_k == by_page.sampling.top_k == 7


def test_a_conversation_is_exported_and_imported(site, open_page, tmp_path):
    page = open_page(site.url)
    set_options(page, Temperature="0.5", System_prompt="Be brief.")
    say(page)
    expect(page.locator(".assistant .facts")).to_contain_text("2 tokens")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export “hi”").click()
    path = tmp_path / "conversation.json"
    download.value.save_as(path)
    page.get_by_role("button", name="New chat").click()
    set_options(page, Temperature="", System_prompt="")
    expect(page.locator("#messages li")).to_have_count(0)
    page.locator("#file").set_input_files(path)
    expect(answer_of(page)).to_have_text("Hello world")
    expect(page.get_by_label("Temperature", exact=True)).to_have_value("0.5")
    expect(page.get_by_label("System prompt", exact=True)).to_have_value("Be brief.")
    path.write_text("{}")
    page.locator("#file").set_input_files(path)
    expect(page.get_by_role("alert")).to_contain_text("conversation.json cannot be opened")
    expect(answer_of(page)).to_have_text("Hello world")


def test_a_service_with_a_key_asks_for_it_and_the_tab_alone_keeps_it(open_page):
    with running_site(api_keys=("sk-right",)) as site:
        page = open_page(site.url)
        page.get_by_label("API key").fill("sk-wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert").filter(has_text="Incorrect API key")).to_be_visible()
        page.get_by_label("API key").fill("sk-right")
        page.keyboard.press("Enter")
        say(page)
        expect(answer_of(page)).to_have_text("Hello world")
        assert "sk-right" in page.evaluate("JSON.stringify({...sessionStorage})")
        assert "sk-right" not in page.evaluate("JSON.stringify({...localStorage}) + document.cookie")
        open_options(page)
        assert "sk-right" not in page.locator("#code").inner_text()
        assert "$API_KEY" in page.locator("#code").inner_text()
        page.get_by_role("button", name="Forget the key").click()
        expect(page.get_by_label("API key")).to_be_visible()
        assert "sk-right" not in page.evaluate("JSON.stringify({...sessionStorage})")


def test_a_service_behind_a_prefix_is_reached_by_relative_paths(site, open_page):
    page = open_page(site.url)
    with page.expect_request("**/chat/completions") as sent:
        say(page)
    assert sent.value.url == f"{site.url}v1/chat/completions"
    assert sent.value.post_data_json["model"] == MODEL
