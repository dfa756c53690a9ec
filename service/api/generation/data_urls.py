"""Files in the text of a request: images, and the recordings of batches.

Source: https://www.rfc-editor.org/rfc/rfc2397, https://fetch.spec.whatwg.org/#data-urls
"""

import binascii
import re
from urllib.parse import unquote

from service.errors import InvalidParameter, UnsupportedParameter

MAX_HEAD_CHARS = 4096  # with the name of a file
MAX_SCHEME_CHARS = 16
_HEAD = re.compile(r"""\s*data:(?:[^",]|"[^"]*")*?;\s*base64\s*(?:;[^,]*)?,""", re.IGNORECASE)
_OF_URLS = str.maketrans("-_", "+/")
# What PNG, JPEG, GIF and WebP begin with.
_IMAGE_STARTS = ("iVBORw0KGgo", "/9j/", "R0lGOD", "UklGR")


def encoded_content(url: str) -> str | None:
    """Return what follows `base64,` in a data URL, whatever type and parameters it states; None if it is none."""
    matched = _HEAD.match(url[:MAX_HEAD_CHARS])
    return None if matched is None else url[matched.end() :]


def decode(content: str) -> bytes:
    """Return the bytes of base64 as browsers and tools write it; raises ValueError.

    It may be in lines, of the alphabet of URLs, escaped as in URLs, and without its padding.

    Source: https://infra.spec.whatwg.org/#forgiving-base64-decode, https://fetch.spec.whatwg.org/#data-urls
    """
    if "%" in content:
        content = unquote(content)
    content = "".join(content.split()).rstrip("=").translate(_OF_URLS)
    return binascii.a2b_base64(content + "=" * (-len(content) % 4), strict_mode=True)


def read_data_url(url: str, param: str) -> bytes:
    """Return the image of a data URL, or only of its base64; what it says of its type is not believed.

    Args:
        url: what the client sent.
        param: the request field that an error names.

    Raises:
        UnsupportedParameter: it is an address, and nothing is fetched.
        InvalidParameter: it is malformed.
    """
    content = encoded_content(url)
    if content is None and url.lstrip().startswith(_IMAGE_STARTS):
        content = url
    if content is None:
        raise _no_content(url.strip(), param)
    try:
        return decode(content)
    except ValueError:  # of characters that are not ASCII, too
        raise InvalidParameter(f"Invalid '{param}': what follows 'base64,' must be base64.", param=param) from None


def _no_content(url: str, param: str) -> InvalidParameter | UnsupportedParameter:
    if url[:5].lower() == "data:":
        return InvalidParameter(f"Invalid '{param}': it must begin as 'data:image/png;base64,'.", param=param)
    scheme = re.match(r"[a-z][a-z0-9+.-]*:", url[:MAX_SCHEME_CHARS], re.IGNORECASE)
    stated = f"it is a '{scheme[0]}' URL" if scheme else "it is no URL"
    return UnsupportedParameter(param, f"{stated}. Send the image itself, as 'data:image/png;base64,…'.")
