"""What models have in common."""

from service.compile.shared import Shared


def test_what_was_used_least_recently_goes():
    shared = Shared(max_kept=2)
    a, b, c = {"a": 1}, {"b": 1}, {"c": 1}
    shared.keep("a", a)
    shared.keep("b", b)
    assert shared.find("a") is a
    shared.keep("c", c)
    assert (shared.find("a"), shared.find("b"), shared.find("c")) == (a, None, c)
    shared.keep("a", b)
    assert shared.find("a") is b
