"""A real browser: the machine's own Chromium, without a window; each test has a profile of its own."""

import shutil

import pytest
from playwright.sync_api import expect, sync_playwright

from tests.contract.page.site import running_site

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--no-sandbox",  # the tests may run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--use-fake-device-for-media-stream",  # a microphone that beeps, and that needs no permission
    "--use-fake-ui-for-media-stream",
)
TIMEOUT_MS = 20_000
expect.set_options(timeout=TIMEOUT_MS)


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the groups in the same hook
def pytest_collection_modifyitems(items):
    for item in items:
        if "browser" in item.fixturenames:
            item.add_marker(pytest.mark.xdist_group("browser"))


@pytest.fixture(scope="package")
def browser():
    """The browser; while it runs, this thread has an event loop, which other folders' tests could not bear."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium is installed; on Debian: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser):
    """Open pages that must neither reach for other machines nor break their own policy."""
    contexts, complaints = [], []

    def open_at(url, *, width=1280, height=860, **options):
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(TIMEOUT_MS)
        page.on("pageerror", lambda error: complaints.append(f"error: {error}"))
        page.on("console", lambda line: complaints.append(line.text) if "Content Security" in line.text else None)
        origin = url.rstrip("/").removesuffix("/docs").removesuffix("/vectors").removesuffix("/hear")
        page.on("request", lambda sent: complaints.append(sent.url) if not is_own(sent.url, origin) else None)
        page.goto(url)
        return page

    yield open_at
    for context in contexts:
        context.close()
    assert complaints == []


def is_own(url, origin):
    return url.startswith((f"{origin}/", f"blob:{origin}/", "data:image/svg+xml,"))


@pytest.fixture
def site():
    with running_site() as site:
        yield site
