"""What models have in common."""

from service.compile.lru_cache import LruCache


def test_what_was_used_least_recently_goes():
    shared = LruCache(max_entries=2)
    a, b, c = {"a": 1}, {"b": 1}, {"c": 1}
    shared.put("a", a)
    shared.put("b", b)
    assert shared.get("a") is a
    shared.put("c", c)
    assert (shared.get("a"), shared.get("b"), shared.get("c")) == (a, None, c)
    shared.put("a", b)
    assert shared.get("a") is b
