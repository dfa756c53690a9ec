"""The description of the API as a page."""

from playwright.sync_api import expect

from tests.contract.page.site import running_site


def test_it_shows_every_operation_with_its_fields_and_errors(site, open_page):
    page = open_page(f"{site.url}docs")
    article = page.locator("#create_chat_completion")
    expect(article).to_contain_text("/v1/chat/completions")
    row = article.locator("dl > div", has=page.get_by_text("messages", exact=True)).first
    expect(row).to_contain_text("list of Message, required")
    row.get_by_text("Message", exact=True).click()
    expect(row).to_contain_text("tool_call_id")
    article.get_by_text("Errors").click()
    expect(article).to_contain_text("unsupported_parameter")


def test_it_shows_forms_and_queries(site, open_page):
    page = open_page(f"{site.url}docs")
    form = page.locator("#create_file dl > div")
    expect(form.filter(has=page.get_by_text("file", exact=True)).first).to_contain_text("required")
    expect(form.filter(has=page.get_by_text("purpose", exact=True)).first).to_contain_text('"batch"')
    query = page.locator("#list_files dl > div").filter(has=page.get_by_text("limit", exact=True)).first
    expect(query).to_contain_text("from 1 to 10000")


def test_it_waits_for_the_service_and_asks_for_the_key(open_page):
    with running_site(api_keys=("sk-1",)) as site:
        site.begin_start()
        page = open_page(f"{site.url}docs")
        expect(page.locator("#lead")).to_contain_text("not ready")
        site.finish_start()
        page.get_by_label("API key").fill("sk-1")
        page.keyboard.press("Enter")
        expect(page.locator("article")).to_have_count(site.num_operations)
