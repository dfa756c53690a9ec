"""Signatures of bundles. A checksum proves that bytes are unchanged, a signature proves who wrote them.

A manifest contains the checksums of all executables, so its signature covers them. The signature is an HMAC-SHA256 over
the JSON of the other fields, with sorted keys and without whitespace.
Source: https://www.rfc-editor.org/rfc/rfc2104
"""

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from typing import Any

FIELD = "signature"


class Signer:
    """Signs and verifies the fields of JSON objects; without keys, it signs nothing and accepts everything."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        """Create a signer.

        Args:
            keys: the first one signs and all of them verify, so that keys can be rotated.
        """
        self._keys = [key.encode() for key in keys]

    def signed(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Add a signature to the fields if there is a key."""
        return {**fields, FIELD: _mac(self._keys[0], fields)} if self._keys else dict(fields)

    def verifies(self, fields: Mapping[str, Any]) -> bool:
        """Return whether the fields are signed with one of the keys; always True without keys."""
        # Defends against T17.
        if not self._keys:
            return True
        signature = fields.get(FIELD)
        if not isinstance(signature, str):
            return False
        others = {name: value for name, value in fields.items() if name != FIELD}
        return any(hmac.compare_digest(_mac(key, others).encode(), signature.encode()) for key in self._keys)


UNSIGNED = Signer()


def _mac(key: bytes, fields: Mapping[str, Any]) -> str:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
