"""Keys of pages: equal only where all tokens up to the page's end are equal too.

A page's key is a hash of its tokens and of the previous page's key. The first page's key hashes the request's
conditioning and its salt, so that one tenant cannot find, or time, what another sent.
"""

import hashlib
import secrets
from array import array
from collections.abc import Sequence

KEY_BYTES = 16
# Random for each process, so that an attacker cannot construct two texts whose keys collide.
_PROCESS_SECRET = secrets.token_bytes(32)


def root_key(salt: bytes, conditioning_digest: bytes = b"") -> bytes:
    """Return the key that precedes the first page's."""
    content = len(salt).to_bytes(4, "big") + salt + conditioning_digest
    return hashlib.blake2b(content, digest_size=KEY_BYTES, key=_PROCESS_SECRET).digest()


def extend_keys(keys: list[bytes], root: bytes, token_ids: Sequence[int], page_size: int) -> None:
    """Add the key of every whole page of `token_ids` that has none yet.

    Args:
        keys: the keys of the first pages; extended in place.
        root: the result of `root_key`.
        token_ids: all tokens from position 0 on.
        page_size: tokens of a page.
    """
    for start in range(len(keys) * page_size, len(token_ids) - page_size + 1, page_size):
        page = array("i", token_ids[start : start + page_size]).tobytes()
        previous = keys[-1] if keys else root
        keys.append(hashlib.blake2b(previous + page, digest_size=KEY_BYTES, key=_PROCESS_SECRET).digest())
