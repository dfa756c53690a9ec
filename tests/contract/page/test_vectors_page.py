"""The page of a process whose models turn texts into vectors or scores, alone and beside a chat model."""

import pytest
from playwright.sync_api import expect

from service.api.backend import ModelState
from tests.api.vectors.scripted_encoder import MODEL, vector_of
from tests.contract.page.site import encoder_service, running_site
from tests.contract.page.test_accessibility import LOOKS, fits, violations
from tests.encoder.tiny import CLS, SEP, VOCAB


def ids(*words):
    return (CLS, *(VOCAB[word] for word in words), SEP)


def cosine(first, second):
    return float(vector_of(ids(*first)) @ vector_of(ids(*second)))


@pytest.fixture
def encoder_site():
    with running_site(encoder_service) as site:
        yield site


def fill(page, **fields):
    for label, value in fields.items():
        page.get_by_label(label.replace("_", " ")).fill(value)


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_it_compares_and_ranks_texts_instead_of_offering_a_chat(encoder_site, open_page, size, scheme):
    page = open_page(encoder_site.url, color_scheme=scheme, **size)
    expect(page).to_have_url(f"{encoder_site.url}vectors")
    expect(page.locator("#facts")).to_have_text("4 dimensions, texts of up to 8 tokens")
    expect(page.get_by_role("link", name="Chat")).to_be_hidden()
    fill(page, First_text="the cat", Second_text="the dog")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#pair-result .score")).to_have_text(f"{cosine(('the', 'cat'), ('the', 'dog')):.3f}")
    documents = ["the red tree is fast", "cat", "the dog"]
    fill(page, Query_of_the_ranking="cat", Documents="\n\n".join(documents))
    page.get_by_role("button", name="Rank").click()
    ranked = sorted(((cosine(("cat",), text.split()), text) for text in documents), reverse=True)
    expect(page.locator("#rank-result li")).to_have_text([f"{score:.3f}{text}" for score, text in ranked])
    assert violations(page) == []
    assert fits(page)


@pytest.mark.slow
def test_a_refusal_is_shown_where_it_was_asked(encoder_site, open_page):
    page = open_page(f"{encoder_site.url}vectors")
    fill(page, First_text="cat " * 9)
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_role("alert")).to_contain_text("at most 8 tokens, but 'input[0]' has 11")
    fill(page, First_text="cat", Second_text="cat")
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#pair-result .score")).to_have_text("1.000")


@pytest.mark.slow
def test_a_reranker_scores_pairs_and_documents(open_page):
    with running_site(encoder_service, vectors={"is_score": True}) as site:
        page = open_page(site.url)
        expect(page.locator("#facts")).to_have_text("scores pairs of texts, texts of up to 8 tokens")
        fill(page, Query_of_the_pair="cat", Document_of_the_pair="dog")
        page.get_by_role("button", name="Compare").click()
        expect(page.locator("#pair-result")).to_contain_text("score of the second text for the first")
        fill(page, Query_of_the_ranking="cat", Documents="dog\ncat")
        page.get_by_role("button", name="Rank").click()
        expect(page.locator("#rank-result li")).to_have_count(2)


@pytest.mark.slow
def test_it_waits_for_the_start_and_asks_for_the_key(open_page):
    with running_site(encoder_service, api_keys=("sk-1",)) as site:
        site.begin_start()
        page = open_page(f"{site.url}vectors")
        expect(page.locator("#lead")).to_contain_text("not ready")
        site.finish_start()
        page.get_by_label("API key").fill("sk-1")
        page.keyboard.press("Enter")
        expect(page.locator("#facts")).to_contain_text("4 dimensions")


def test_where_there_are_both_kinds_each_page_leads_to_the_other(site, open_page):
    page = open_page(site.url)
    expect(page.get_by_label("Message", exact=True)).to_be_visible()
    expect(page.get_by_role("link", name="Compare texts")).to_be_hidden()
    [chat] = site.service.readiness.listed()
    unloaded = ModelState(names=(MODEL,), created=chat.created, state="available", max_model_len=None)
    site.service.readiness.listed = lambda: [unloaded, chat]
    page.reload()
    expect(page.locator("#welcome-model")).to_have_text(chat.names[0])
    page.get_by_role("link", name="Compare texts").click()
    expect(page.get_by_label("Model")).to_have_value(MODEL)
    expect(page.locator("#facts")).to_have_text("is loaded by the first request")
    page.get_by_role("link", name="Chat").click()
    expect(page.get_by_label("Message", exact=True)).to_be_visible()
