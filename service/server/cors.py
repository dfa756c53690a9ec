"""Pages of other origins: which may read answers, early ones and errors included.

Source: https://fetch.spec.whatwg.org/#http-cors-protocol
"""

from collections.abc import Sequence

from starlette.types import ASGIApp

# What a page may read besides the content; a client that retries needs the last.
EXPOSED_HEADERS = ("x-levserve-ignored", "x-request-id", "retry-after")


def with_cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Return an app whose answers pages of these origins may read; `*` is any. With none, return the app itself.

    A browser asks before it sends JSON or a key. That question needs no key, and is refused to other origins.
    """
    if not origins:
        return app
    from starlette.middleware.cors import CORSMiddleware  # other starts save its import

    return CORSMiddleware(
        app, allow_origins=origins, allow_methods=["*"], allow_headers=["*"], expose_headers=EXPOSED_HEADERS
    )
