"""Signatures of bundles, since a sum proves that bytes are unchanged and not who has written them.

A manifest holds the sums of all executables, so its signature covers them. It is an HMAC-SHA256 over the JSON of its
other fields, with sorted names and without spaces.
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
            keys: the first signs and all verify, so that a key can be replaced while instances still use the old one.
        """
        self._keys = [key.encode() for key in keys]

    def signed(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields with their signature, if there is a key."""
        return {**fields, FIELD: _mac(self._keys[0], fields)} if self._keys else dict(fields)

    def verifies(self, fields: Mapping[str, Any]) -> bool:
        """Return whether the fields have the signature of one of the keys, or there is no key."""
        if not self._keys:
            return True
        stated = fields.get(FIELD)
        if not isinstance(stated, str):
            return False
        others = {name: value for name, value in fields.items() if name != FIELD}
        return any(hmac.compare_digest(_mac(key, others).encode(), stated.encode()) for key in self._keys)


UNSIGNED = Signer()


def _mac(key: bytes, fields: Mapping[str, Any]) -> str:
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
