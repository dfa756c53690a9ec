"""The pages for people, each sent as one document with its styles and scripts in it.

A chat at `/`, which leaves for `/vectors` or `/hear` where no model chats; texts compared and ranked at the first,
recordings transcribed at the second; the API at `/docs`.

They hold no secret, so they need no key; what they ask the service for needs one. A browser runs only the scripts and
the styles whose digests the policy names.
Source: https://www.w3.org/TR/CSP3/ (hash-source), https://www.w3.org/TR/trusted-types/
"""

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from starlette.types import Scope, Send

from service.errors import MethodNotAllowed, UnknownRoute

FOLDER = Path(__file__).parent / "html"
PAGES = {"/": "chat.html", "/vectors": "vectors.html", "/hear": "hear.html", "/docs": "docs.html"}
FONTS = "/fonts/"  # of mathematics, which a browser asks for when an answer has some
FONT_NAME = re.compile(r"KaTeX_\w+-\w+\.woff2")
FONT_MAX_AGE_S = 24 * 60 * 60
ALLOWED_METHODS = ("GET", "HEAD")


class Page(NamedTuple):
    """One page, as it is sent."""

    content: bytes
    compressed: bytes  # with gzip
    policy: str  # Content-Security-Policy


@cache
def load(name: str) -> Page:
    """Return a page, which is read and compressed once, at the first request for it."""
    import gzip

    content = (FOLDER / name).read_bytes()
    content = re.sub(rb'<link rel="stylesheet" href="([^"]*)">', _inlined("style"), content)
    content = re.sub(rb'<script src="([^"]*)"></script>', _inlined("script"), content)
    return Page(content, gzip.compress(content, mtime=0), _policy(content))


async def send_page(path: str, scope: Scope, send: Send) -> None:
    """Send the page or the font of a path, a page compressed if the browser accepts that; to HEAD, only its headers.

    Raises:
        MethodNotAllowed: another method.
        UnknownRoute: there is no such font.
    """
    if scope["method"] not in ALLOWED_METHODS:
        raise MethodNotAllowed(", ".join(ALLOWED_METHODS))
    if path.startswith(FONTS):
        await _send_font(path.removeprefix(FONTS), scope, send)
        return
    page = load(PAGES[path])
    encodings = b",".join(value for name, value in scope["headers"] if name == b"accept-encoding")
    is_compressed = b"gzip" in encodings
    body = page.compressed if is_compressed else page.content
    sent = {
        "content-type": "text/html; charset=utf-8",
        "content-length": str(len(body)),
        "content-security-policy": page.policy,
        "cache-control": "no-cache",
        "cross-origin-opener-policy": "same-origin",
        "referrer-policy": "no-referrer",
        "vary": "accept-encoding",
        "x-content-type-options": "nosniff",
        **({"content-encoding": "gzip"} if is_compressed else {}),
    }
    await _send(sent, body, scope, send)


async def _send_font(name: str, scope: Scope, send: Send) -> None:
    path = FOLDER / "fonts" / name
    if not FONT_NAME.fullmatch(name) or not path.is_file():
        raise UnknownRoute("There is no such font.")
    body = path.read_bytes()
    sent = {
        "content-type": "font/woff2",
        "content-length": str(len(body)),
        "cache-control": f"max-age={FONT_MAX_AGE_S}",
        "x-content-type-options": "nosniff",
    }
    await _send(sent, body, scope, send)


async def _send(headers: dict[str, str], body: bytes, scope: Scope, send: Send) -> None:
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": 200, "headers": encoded})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def _inlined(kind: str) -> Callable[[re.Match[bytes]], bytes]:
    """Return what puts the file that an element names into an element of a kind."""

    def element(match: re.Match[bytes]) -> bytes:
        return b"<%b>%b</%b>" % (kind.encode(), (FOLDER / match[1].decode()).read_bytes(), kind.encode())

    return element


def _policy(content: bytes) -> str:
    """Return a policy that allows the page's own scripts, its own styles, and requests to this service."""
    return (
        f"default-src 'none'; script-src {_digests('script', content)}; style-src {_digests('style', content)}; "
        "connect-src 'self'; font-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _digests(kind: str, content: bytes) -> str:
    import base64
    import hashlib

    inline = re.findall(rf"<{kind}>(.*?)</{kind}>".encode(), content, re.DOTALL)
    digests = (hashlib.sha256(text).digest() for text in inline)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)
