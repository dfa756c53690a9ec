"""The keys of clients: what each is called, and what it may do."""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field

from starlette.types import Scope

from service.errors import InvalidApiKey


@dataclass(frozen=True)
class ApiKey:
    """One key of a client."""

    name: str  # for the log
    secret: str = field(repr=False)
    weight: float = 1.0  # its share of the device, relative to the other keys' weights; more than 0
    can_prioritize: bool = False  # whether its requests may overtake those of others by a negative `priority`


NO_KEY = ApiKey("", "")  # of all requests where none is required, and of batches


def plain_keys(secrets: Sequence[str]) -> tuple[ApiKey, ...]:
    """Return keys of equal rights, named by their numbers."""
    return tuple(ApiKey(f"api_key_{number}", secret) for number, secret in enumerate(secrets, start=1))


class ApiKeys:
    """The keys that open a part of the service, found by their digests."""

    def __init__(self, keys: Sequence[ApiKey] = ()) -> None:
        self.replace(keys)

    def __bool__(self) -> bool:
        return bool(self._by_digest)

    def replace(self, keys: Sequence[ApiKey]) -> None:
        """Let these keys open from now on, and no others; any thread may call it."""
        self._by_digest = tuple((hashlib.sha256(key.secret.encode()).digest(), key) for key in keys)

    def verify(self, scope: Scope) -> tuple[ApiKey, bytes]:
        """Return the key of a request, and its SHA-256 digest.

        Compares with all digests and in constant time, so that timing reveals nothing about the keys.

        Raises:
            InvalidApiKey: the request has no key, a wrong one, or two.
        """
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        if len(given) == 1:
            scheme, _, secret = given[0].partition(b" ")
            digest = hashlib.sha256(secret.strip()).digest()
            matches = [key for known, key in self._by_digest if hmac.compare_digest(digest, known)]
            if scheme.lower() == b"bearer" and matches:
                return matches[0], digest
        raise InvalidApiKey(is_missing=not given)
