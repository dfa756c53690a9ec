"""Thinking that stateless clients keep and send back: signed, so that only what this service wrote is read again.

The key is that of the client, so another client's or a forged text is not read, and any instance reads its own.
"""

import base64
import binascii
import hashlib
import hmac
import zlib

MAX_TEXT_BYTES = 4 * 1024 * 1024  # of one sealed text
_CONTEXT = b"levserve thinking 1\0"


def sign(text: str, key: bytes) -> str:
    """Return the signature of a text."""
    digest = hmac.digest(key, _CONTEXT + text.encode(errors="surrogatepass"), hashlib.sha256)
    return base64.urlsafe_b64encode(digest).decode()


def is_signed(text: str, signature: str, key: bytes) -> bool:
    """Return whether a signature is that of a text."""
    return hmac.compare_digest(sign(text, key).encode(), signature.encode(errors="surrogatepass"))


def own_text(text: str, proof: str, key: bytes) -> str | None:
    """Return a text that is signed, or the one that its proof holds if it was left out; None if it is another's."""
    if not text:
        return unsealed(proof, key)
    return text if is_signed(text, proof, key) else None


def seal(text: str, key: bytes) -> str:
    """Return a text and its signature as one opaque string."""
    packed = base64.urlsafe_b64encode(zlib.compress(text.encode(errors="surrogatepass"), 1)).decode()
    return f"{packed}.{sign(text, key)}"


def unsealed(sealed: str, key: bytes) -> str | None:
    """Return the text that `seal` has packed; None if it is another's, forged, cut or too long."""
    packed, _, signature = sealed.rpartition(".")
    try:
        unpacking = zlib.decompressobj()
        content = unpacking.decompress(base64.b64decode(packed, b"-_", validate=True), MAX_TEXT_BYTES)
        text = content.decode(errors="surrogatepass")
    except (binascii.Error, ValueError, zlib.error):
        return None
    return text if unpacking.eof and is_signed(text, signature, key) else None
