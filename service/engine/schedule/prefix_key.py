"""Keys of pages: equal only where all that came before is equal too.

A page's key is a hash of its tokens and of the key of the page before it; the first one's hashes what the request is
conditioned on and its salt, so that what one tenant sent cannot be found, or timed, by another.
"""

import hashlib
import secrets
from array import array
from collections.abc import Sequence

KEY_BYTES = 16
# Random for each process: nobody outside can make two texts collide.
_PROCESS_SECRET = secrets.token_bytes(32)


def root_key(salt: bytes, conditioning_digest: bytes = b"") -> bytes:
    """Return what stands before the first page."""
    content = len(salt).to_bytes(4, "big") + salt + conditioning_digest
    return hashlib.blake2b(content, digest_size=KEY_BYTES, key=_PROCESS_SECRET).digest()


def extend_keys(keys: list[bytes], root: bytes, token_ids: Sequence[int], page_size: int) -> None:
    """Add the key of every whole page of `token_ids` that has none yet.

    Args:
        keys: the keys of the first pages; extended in place.
        root: what `root_key` gave.
        token_ids: all tokens from position 0 on.
        page_size: tokens of a page.
    """
    for start in range(len(keys) * page_size, len(token_ids) - page_size + 1, page_size):
        page = array("i", token_ids[start : start + page_size]).tobytes()
        before = keys[-1] if keys else root
        keys.append(hashlib.blake2b(before + page, digest_size=KEY_BYTES, key=_PROCESS_SECRET).digest())
