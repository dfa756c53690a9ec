"""The pages as they are sent; tests/page looks at them in a browser."""

import asyncio
import base64
import gzip
import hashlib
import json
import re
from pathlib import Path

import pytest

from service.observability.metrics import Metrics
from service.server.pages import FOLDER, PAGES
from tests.server.early_app import early_app
from tests.server.test_early import StartingService, ask, echo

MAX_COMPRESSED_BYTES = {"/": 200_000, "/vectors": 20_000, "/hear": 20_000, "/docs": 20_000}
MAX_BYTES_WITH_FONTS = 400_000
FONTS = sorted((FOLDER / "fonts").glob("*.woff2"))
LIBRARIES = (FOLDER / "libraries.js").read_text()
LOCK_FILE = Path(__file__).parents[2] / "scripts" / "page_libraries" / "package-lock.json"
# The names of XML vocabularies, which no browser fetches.
NAMESPACE = "http://www.w3.org/2000/svg"


def get(path, method="GET", headers=(), **options):
    service = StartingService()
    service.api = options.pop("api", None)
    return asyncio.run(ask(early_app(service, Metrics(), **options), path, method, headers))


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_there_before_the_model_and_before_the_api(path):
    status, headers, body = get(path)
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert body.startswith(b"<!doctype html>")
    assert headers["x-request-id"].startswith("req_")
    assert get(path, api=echo)[2] == body


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_small_and_comes_compressed_to_those_who_can_read_it(path):
    plain = get(path)[2]
    status, headers, body = get(path, headers=[(b"accept-encoding", b"br, gzip")])
    assert (status, headers["content-encoding"], headers["vary"]) == (200, "gzip", "accept-encoding")
    assert int(headers["content-length"]) == len(body) <= MAX_COMPRESSED_BYTES[path]
    assert gzip.decompress(body) == plain


@pytest.mark.parametrize("path", PAGES)
def test_a_browser_runs_the_scripts_and_the_styles_of_the_page_and_nothing_else(path):
    _, headers, body = get(path)
    policy = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for kind in ("script", "style"):
        digests = [
            hashlib.sha256(text).digest() for text in re.findall(rf"<{kind}>(.*?)</{kind}>".encode(), body, re.DOTALL)
        ]
        assert policy[f"{kind}-src"].split() == [f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests]


@pytest.mark.parametrize("path", PAGES)
def test_a_page_names_no_other_address(path):
    text = get(path)[2].decode().replace(LIBRARIES, "")
    text = re.sub(r"url\(fonts/KaTeX_\w+-\w+\.woff2\)", "", text)
    assert set(re.findall(r"https?://[^\s\"'`<]+", text.replace(NAMESPACE, ""))) == set()
    assert re.findall(r"\bsrc=|@import|url\(|innerHTML|\bstyle=", text) == []


@pytest.mark.parametrize("path", PAGES)
def test_a_page_can_be_read_and_nothing_else(path):
    status, headers, body = get(path, "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) > 0
    status, headers, _ = get(path, "POST")
    assert (status, headers["allow"]) == (405, "GET, HEAD")


def test_the_fonts_are_those_that_the_page_names_and_all_is_small():
    names = re.findall(r"url\(fonts/([^)]*)\)", get("/")[2].decode())
    assert sorted(names) == [font.name for font in FONTS]
    page = int(get("/", headers=[(b"accept-encoding", b"gzip")])[1]["content-length"])
    assert page + sum(font.stat().st_size for font in FONTS) <= MAX_BYTES_WITH_FONTS


def test_a_font_is_sent_and_nothing_else_of_its_folder():
    status, headers, body = get(f"/fonts/{FONTS[0].name}")
    assert (status, headers["content-type"], body) == (200, "font/woff2", FONTS[0].read_bytes())
    assert get(f"/fonts/{FONTS[0].name}", "HEAD")[2] == b""
    assert get(f"/fonts/{FONTS[0].name}", "POST")[0] == 405
    for name in ("KaTeX_No-Font.woff2", "../chat.html", "..%2fchat.html", "/etc/passwd"):
        assert get(f"/fonts/{name}")[0] == 404
    assert get(f"/fonts/{FONTS[0].name}", has_pages=False)[0] == 503


@pytest.mark.parametrize("path", PAGES)
def test_without_pages_their_paths_belong_to_the_api(path):
    assert get(path, has_pages=False)[0] == 503
    assert get(path, has_pages=False, api=echo)[2] == b"from the api"


def test_the_libraries_are_those_of_the_lock_file_with_their_licences():
    locked = json.loads(LOCK_FILE.read_text())["packages"]
    licences = (FOLDER / "libraries.LICENSES.txt").read_text()
    [listed] = re.findall(r"// Bundled by `make page-libraries`: (.*)\.\n", LIBRARIES)
    assert {"markdown-it", "highlight.js", "lowlight"} <= {title.split()[0] for title in listed.split("; ")}
    for title in listed.split("; "):
        name, version, licence = re.fullmatch(r"(\S+) (\S+), (\S+)", title).groups()
        assert (version, licence) == (
            locked[f"node_modules/{name}"]["version"],
            locked[f"node_modules/{name}"]["license"],
        )
        assert f"{title}\n\n" in licences
