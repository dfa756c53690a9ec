"""Images in the text of a request.

Source: https://www.rfc-editor.org/rfc/rfc2397
"""

import binascii
import re

from service.errors import InvalidParameter, UnsupportedParameter

MAX_HEAD_CHARS = 128
MAX_SCHEME_CHARS = 16
_HEAD = re.compile(r"data:(image/[a-z0-9.+-]+)?(;[a-z0-9-]+=[a-z0-9.-]*)*;base64", re.IGNORECASE)


def read_data_url(url: str, param: str) -> bytes:
    """Return the bytes of a data URL; what it says of their type is not believed.

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
    head, comma, content = url.partition(",") if "," in url[:MAX_HEAD_CHARS] else (url, "", "")
    if not comma or not _HEAD.fullmatch(head):
        raise InvalidParameter(f"Invalid '{param}': it must begin as 'data:image/png;base64,'.", param=param)
    try:
        missing = -len(content) % 4
        return binascii.a2b_base64(content + "=" * missing, strict_mode=True)
    except ValueError:  # of characters that are not ASCII, too
        message = f"Invalid '{param}': what follows 'base64,' must be base64, without whitespace."
        raise InvalidParameter(message, param=param) from None
