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


OPEN_OWNER = "open"  # of everything where no key is needed
NO_KEY = ApiKey("", "", can_prioritize=True)  # of requests where none is required, and of batches


def owner_of(key_digest: bytes) -> str:
    """Return the owner of what a request with this key creates: nothing that the key or its digest follows from."""
    return hashlib.sha256(b"levserve owner " + key_digest).hexdigest()[:32] if key_digest else OPEN_OWNER


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
        bearers = [value for name, value in scope["headers"] if name == b"authorization"]
        plain = [value for name, value in scope["headers"] if name == b"x-api-key"]  # Anthropic's
        secrets = {_bearer(value) for value in bearers} | {value.strip() for value in plain}
        # Some clients send their key under both names.
        if len(bearers) <= 1 and len(plain) <= 1 and len(secrets) == 1 and (secret := secrets.pop()) is not None:
            digest = hashlib.sha256(secret).digest()
            # Defends against T21.
            matches = [key for known, key in self._by_digest if hmac.compare_digest(digest, known)]
            if matches:
                return matches[0], digest
        raise InvalidApiKey(is_missing=not bearers and not plain)


def _bearer(value: bytes) -> bytes | None:
    """Return the key of an Authorization header; None for another scheme."""
    scheme, _, secret = value.partition(b" ")
    return secret.strip() if scheme.lower() == b"bearer" else None
