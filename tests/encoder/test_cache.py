"""Vectors found by content, least recently used first out."""

import numpy as np
import pytest

from service.encoder.cache import ENTRY_BYTES, PartialRequest, VectorCache, keys_of
from service.encoder.request import EncodeRequest
from service.observability.model_metrics import ModelMetrics

SIZE = 4
ENTRY = ENTRY_BYTES + 4 * SIZE


def vector(number):
    return np.full(SIZE, number, np.float32)


def request(*texts, second_from=()):
    return EncodeRequest("r", texts, second_from)


def counted(metrics):
    return tuple(metrics.value(f"levserve_embedding_cache_{name}_total") for name in ("hits", "misses"))


@pytest.fixture
def metrics():
    return ModelMetrics()


def test_a_key_follows_from_tokens_types_and_salt():
    [one, other] = keys_of(request((1, 2), (2, 1)), b"")
    assert one != other
    assert keys_of(request((1, 2)), b"") == [one]
    assert keys_of(request((1, 2)), b"key") != [one]
    assert keys_of(request((1, 2), second_from=(1,)), b"") != keys_of(request((1, 2), second_from=(2,)), b"")


def test_the_least_recently_used_vector_goes_first(metrics):
    cache = VectorCache(2 * ENTRY, metrics)
    cache.add(b"a", vector(1))
    cache.add(b"b", vector(2))
    cache.find([b"a"])
    cache.add(b"c", vector(3))
    assert cache.find([b"a", b"b", b"c"]).keys() == {b"a", b"c"}
    assert cache.num_bytes == 2 * ENTRY
    assert counted(metrics) == (3, 1)


def test_what_is_larger_than_the_cache_is_not_kept(metrics):
    cache = VectorCache(ENTRY - 1, metrics)
    cache.add(b"a", vector(1))
    assert (cache.find([b"a"]), cache.num_bytes) == ({}, 0)


def test_a_vector_is_kept_as_it_was(metrics):
    cache, row = VectorCache(10 * ENTRY, metrics), vector(1)
    cache.add(b"a", row)
    row[:] = 7
    cache.add(b"a", vector(9))
    np.testing.assert_array_equal(cache.find([b"a"])[b"a"], vector(1))
    assert cache.num_bytes == ENTRY


def test_only_missing_texts_are_encoded_and_each_once(metrics):
    cache = VectorCache(10 * ENTRY, metrics)
    asked = request((1,), (2,), (1,), (3,), second_from=(1, 1, 1, 1))
    keys = keys_of(asked, b"")
    cache.add(keys[1], vector(2))
    partial = PartialRequest(asked, keys, cache)
    assert (partial.numbers, partial.missing.texts, partial.missing.second_from) == ([0, 3], ((1,), (3,)), (1, 1))
    found = partial.complete(np.array([vector(1), vector(3)]))
    np.testing.assert_array_equal(found, [vector(1), vector(2), vector(1), vector(3)])
    again = PartialRequest(asked, keys, cache)
    assert again.numbers == []
    np.testing.assert_array_equal(again.vectors(), found)
