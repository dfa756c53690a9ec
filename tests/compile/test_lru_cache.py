"""What models have in common."""

from service.compile.lru_cache import LruCache


def test_what_was_used_least_recently_goes():
    shared = LruCache(max_size=2)
    a, b, c = {"a": 1}, {"b": 1}, {"c": 1}
    shared.put("a", a)
    shared.put("b", b)
    assert shared.get("a") is a
    shared.put("c", c)
    assert (shared.get("a"), shared.get("b"), shared.get("c")) == (a, None, c)
    shared.put("a", b)
    assert shared.get("a") is b


def test_values_may_have_sizes():
    kept = LruCache(max_size=5, size_of=len)
    kept.put(1, "aaa")
    kept.put(2, "bb")
    kept.put(3, "too long")
    assert (kept.get(1), kept.get(2), kept.get(3), kept.size) == ("aaa", "bb", None, 5)
    kept.put(1, "a")
    kept.put(3, "ccc")
    assert (kept.get(1), kept.get(2), kept.get(3), kept.size) == ("a", None, "ccc", 4)
    kept.put(3, "too long")
    assert (kept.get(3), kept.size) == (None, 1)
