"""Answers that go on after they were cut, and answers that their reader corrects."""

import json

from playwright.sync_api import expect

from service.engine.request import FinishReason
from service.errors import EngineError
from tests.api.scripted_engine import STALL, TOKENIZER, tokens
from tests.contract.page.test_accessibility import violations
from tests.contract.page.test_chat_page import answer_of, say, set_options, wait_until
from tests.contract.page.test_conversations import answer_with, questions


def cut(site, text, reason=FinishReason.LENGTH):
    site.engine.script[:] = [*tokens(text), reason]


def go_on(page):
    page.get_by_role("button", name="Continue").click()


def prompt_of(site):
    return TOKENIZER.backend.decode(site.engine.last.request.prompt_ids, skip_special_tokens=False)


def test_an_answer_that_was_cut_goes_on_where_it_ended(site, open_page):
    cut(site, "Hello")
    page = open_page(site.url)
    say(page, "say it")
    expect(page.locator(".assistant .facts")).to_contain_text("reached the limit on tokens")
    cut(site, " world", FinishReason.STOP)
    go_on(page)
    expect(answer_of(page)).to_have_text("Hello world")
    assert prompt_of(site).endswith("user:say it<|turn|>assistant:Hello")
    expect(page.locator(".assistant .facts")).to_contain_text("2 tokens")
    expect(page.get_by_role("button", name="Continue")).to_be_hidden()
    expect(page.locator("#messages li")).to_have_count(2)
    page.reload()
    expect(answer_of(page)).to_have_text("Hello world")
    page.get_by_role("button", name="Previous version").click()
    expect(answer_of(page)).to_have_text("Hello")
    expect(page.get_by_role("button", name="Continue")).to_be_visible()


def test_an_answer_that_was_stopped_or_broke_off_goes_on(site, open_page):
    site.engine.script[:] = [*tokens("Hello"), STALL]
    page = open_page(site.url)
    say(page)
    expect(answer_of(page)).to_have_text("Hello")
    page.get_by_role("button", name="Stop").click()
    site.engine.script[:] = [*tokens(" wor"), EngineError("boom")]
    go_on(page)
    expect(answer_of(page)).to_have_text("Hello wor")
    expect(page.get_by_role("alert").last).to_contain_text("The engine failed")
    cut(site, "ld", FinishReason.STOP)
    go_on(page)
    expect(answer_of(page)).to_have_text("Hello world")
    expect(page.locator("#messages [role=alert]")).to_have_count(0)


def test_going_on_with_nothing_more_to_say_leaves_the_answer(site, open_page):
    cut(site, "Hello")
    page = open_page(site.url)
    say(page)
    expect(page.get_by_role("button", name="Continue")).to_be_visible()
    site.engine.script[:] = [FinishReason.STOP]
    go_on(page)
    wait_until(lambda: len(site.engine.streams) == 2)
    expect(answer_of(page)).to_have_text("Hello")
    expect(page.get_by_role("button", name="Try again")).to_be_visible()
    expect(page.locator("#messages li")).to_have_count(2)


def test_an_answer_by_a_schema_is_not_continued_and_that_is_said(site, open_page):
    page = open_page(site.url)
    cut(site, '{"a":')
    say(page)
    expect(page.get_by_role("button", name="Continue")).to_be_visible()
    set_options(page, JSON_schema_of_the_answer=json.dumps({"type": "object"}))
    go_on(page)
    expect(page.get_by_role("alert").filter(has_text="cannot be continued")).to_be_visible()
    assert len(site.engine.streams) == 1


def test_a_corrected_answer_is_kept_beside_the_models_and_is_what_comes_next(site, open_page):
    answer_with(site, "Paris is in Spain")
    page = open_page(site.url)
    say(page, "Where?")
    expect(page.get_by_role("button", name="Try again")).to_be_visible()
    page.get_by_role("button", name="Correct").click()
    page.get_by_label("Correct the answer").fill("Paris is in")
    assert violations(page) == []
    page.get_by_role("button", name="Save").click()
    expect(answer_of(page)).to_have_text("Paris is in")
    expect(page.locator(".assistant .facts")).to_contain_text("corrected by you")
    answer_with(site, " France")
    go_on(page)
    expect(answer_of(page)).to_have_text("Paris is in France")
    expect(page.get_by_role("group", name="Version 3 of 3")).to_be_visible()
    say(page, "And Rome?")
    expect(questions(page)).to_have_count(2)
    wait_until(lambda: len(site.engine.streams) == 3)
    assert "assistant:Paris is in France<|turn|>user:And Rome?" in prompt_of(site)
