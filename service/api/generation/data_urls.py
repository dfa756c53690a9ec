"""Files in the text of a request: images, and the recordings of batches.

Source: https://www.rfc-editor.org/rfc/rfc2397
"""

import binascii
import re
from collections.abc import Collection

from service.errors import InvalidParameter, UnsupportedParameter

MAX_HEAD_CHARS = 128
MAX_SCHEME_CHARS = 16
IMAGES = ("image",)
_HEAD = re.compile(r"data:(?:([a-z]+)/[a-z0-9.+-]+)?(?:;[a-z0-9-]+=[a-z0-9.-]*)*;base64", re.IGNORECASE)


def encoded_content(url: str, kinds: Collection[str]) -> str | None:
    """Return what follows `base64,` in a data URL; None if it is no such URL, or one of another kind of file.

    Args:
        url: what the client sent.
        kinds: the first parts of the media types that it may state; it may state none.
    """
    head, comma, content = url.partition(",") if "," in url[:MAX_HEAD_CHARS] else (url[:MAX_HEAD_CHARS], "", "")
    matched = _HEAD.fullmatch(head)
    if not comma or matched is None or (matched[1] is not None and matched[1].lower() not in kinds):
        return None
    return content


def decode(content: str) -> bytes:
    """Return the bytes of base64, whose padding may be missing; raises ValueError."""
    return binascii.a2b_base64(content + "=" * (-len(content) % 4), strict_mode=True)


def read_data_url(url: str, param: str) -> bytes:
    """Return the image of a data URL; what it says of their type is not believed.

    Args:
        url: what the client sent.
        param: the request field that an error names.

    Raises:
        UnsupportedParameter: it is an address, and nothing is fetched.
        InvalidParameter: it is malformed.
    """
    if url[:5].lower() != "data:":
        scheme = re.match(r"[a-z][a-z0-9+.-]*:", url[:MAX_SCHEME_CHARS], re.IGNORECASE)
        stated = f"it is a '{scheme[0]}' URL" if scheme else "it is no URL"
        raise UnsupportedParameter(param, f"{stated}. Send the image itself, as 'data:image/png;base64,…'.")
    content = encoded_content(url, IMAGES)
    if content is None:
        raise InvalidParameter(f"Invalid '{param}': it must begin as 'data:image/png;base64,'.", param=param)
    try:
        return decode(content)
    except ValueError:  # of characters that are not ASCII, too
        message = f"Invalid '{param}': what follows 'base64,' must be base64, without whitespace."
        raise InvalidParameter(message, param=param) from None
