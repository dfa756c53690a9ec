"""Thinking that stateless clients keep and send back: signed, so that only what this service wrote is read again.

The key is that of the client, so another client's or a forged text is not read, and any instance reads its own. What
is packed is signed as it is packed, and opened once its signature is right.
"""

import base64
import binascii
import hashlib
import hmac
import zlib

MAX_TEXT_BYTES = 4 * 1024 * 1024  # of the sealed texts of one request together
_TEXT, _PACKED = b"levserve thinking 1\0", b"levserve packed thinking 1\0"


def sign(text: str, key: bytes) -> str:
    """Return the signature of a text."""
    return _signature(_TEXT, text, key)


def seal(text: str, key: bytes) -> str:
    """Return a text and a signature as one opaque string."""
    packed = base64.urlsafe_b64encode(zlib.compress(text.encode(errors="surrogatepass"), 1)).decode()
    return f"{packed}.{_signature(_PACKED, packed, key)}"


class OwnTexts:
    """Reads the thinking of one request that was written for its client."""

    def __init__(self, key: bytes) -> None:
        """Read nothing yet; `key` has signed what the client was sent."""
        self._key = key
        self._left_bytes = MAX_TEXT_BYTES

    def read(self, text: str, proof: str) -> str | None:
        """Return a text that is signed, or the one that its proof holds if it was left out; None if it is another's."""
        if not text:
            return self.unsealed(proof)
        return text if _is_signed(_TEXT, text, proof, self._key) else None

    def unsealed(self, sealed: str) -> str | None:
        """Return the text that `seal` has packed; None if it is another's, forged, cut, or beyond the limit."""
        packed, _, signature = sealed.rpartition(".")
        # Defends against T38.
        if not _is_signed(_PACKED, packed, signature, self._key):
            return None
        try:
            unpacking = zlib.decompressobj()
            # One byte more than is left, since a limit of 0 is none.
            content = unpacking.decompress(base64.b64decode(packed, b"-_", validate=True), self._left_bytes + 1)
            text = content.decode(errors="surrogatepass")
        except (binascii.Error, ValueError, zlib.error):
            return None
        if not unpacking.eof or len(content) > self._left_bytes:
            return None
        self._left_bytes -= len(content)
        return text


def _signature(context: bytes, text: str, key: bytes) -> str:
    digest = hmac.digest(key, context + text.encode(errors="surrogatepass"), hashlib.sha256)
    return base64.urlsafe_b64encode(digest).decode()


def _is_signed(context: bytes, text: str, signature: str, key: bytes) -> bool:
    return hmac.compare_digest(_signature(context, text, key).encode(), signature.encode(errors="surrogatepass"))
