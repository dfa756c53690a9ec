"""An LRU cache of vectors by the content of their texts, bounded in bytes.

A vector follows only from the model and the token ids; what a request does with it afterwards, such as cutting it, is
not part of the key. Requests with different API keys find none of one another's, as with cached prefixes.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from service.compile.lru_cache import LruCache
from service.encoder.request import EncodeRequest, Vectors
from service.observability.model_metrics import ModelMetrics

DIGEST_BYTES = 20
# Of an entry besides its numbers: the key, the array's header, and its place in the table.
ENTRY_BYTES = 300

type VectorKey = bytes


class VectorCache:
    """A cache that several threads may use."""

    def __init__(self, max_bytes: int, metrics: ModelMetrics) -> None:
        """Begin empty; with `max_bytes` 0 it stays so."""
        self.is_on = max_bytes > 0
        self._metrics = metrics
        self._vectors = LruCache[np.ndarray](max_bytes, _size_bytes)

    @property
    def num_bytes(self) -> int:
        """The bytes of all entries."""
        return self._vectors.size

    def find(self, keys: Sequence[VectorKey]) -> dict[VectorKey, np.ndarray]:
        """Return the vectors that are there, and count hits and misses."""
        found = {key: vector for key in dict.fromkeys(keys) if (vector := self._vectors.get(key)) is not None}
        num_hits = sum(key in found for key in keys)
        self._metrics.embedding_cache_hits.inc(num_hits)
        self._metrics.embedding_cache_misses.inc(len(keys) - num_hits)
        return found

    def add(self, key: VectorKey, vector: np.ndarray) -> None:
        """Keep a copy of a vector, and drop others if there is no room."""
        if self._vectors.get(key) is None:
            self._vectors.put(key, vector.copy())


def keys_of(request: EncodeRequest, salt: bytes) -> list[VectorKey]:
    """Return the key of each text; requests with different salts share none."""
    return [
        _key(salt, token_ids, request.second_from[index] if request.second_from else None, request.prompt_tokens)
        for index, token_ids in enumerate(request.texts)
    ]


class PartialRequest:
    """The texts of a request that the cache lacks, each once."""

    def __init__(self, request: EncodeRequest, keys: Sequence[VectorKey], cache: VectorCache) -> None:
        """Look the texts up."""
        self._keys = keys
        self._cache = cache
        self._vectors = cache.find(keys)
        first = {key: index for index, key in reversed(list(enumerate(keys))) if key not in self._vectors}
        self.numbers = sorted(first.values())  # of the texts that are missing, among all
        seconds = tuple(request.second_from[number] for number in self.numbers) if request.second_from else ()
        texts = tuple(request.texts[number] for number in self.numbers)
        self.missing = EncodeRequest(request.id, texts, seconds, request.prompt_tokens)

    def complete(self, computed: Float[np.ndarray, "missing vector"]) -> Vectors:
        """Keep the vectors of the missing texts, and return those of all texts."""
        for number, vector in zip(self.numbers, computed, strict=True):
            self._vectors[self._keys[number]] = vector
            self._cache.add(self._keys[number], vector)
        return self.vectors()

    def vectors(self) -> Vectors:
        """Return the vectors of all texts, none of which is missing."""
        return np.array([self._vectors[key] for key in self._keys])


def _key(salt: bytes, token_ids: Sequence[int], second_from: int | None, prompt_tokens: int) -> VectorKey:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    digest.update(f"{len(salt)} {second_from} {prompt_tokens} ".encode() + salt)
    digest.update(np.array(token_ids, np.int32).tobytes())
    return digest.digest()


def _size_bytes(vector: np.ndarray) -> int:
    return vector.nbytes + ENTRY_BYTES
