"""The ids of earlier calls, as the families that take no others have them."""

from service.text.formats.history import SHORT_ID_CHARS, KnownIds


def test_ids_have_the_name_and_the_number_of_the_call_in_the_conversation():
    ids = KnownIds("functions.$name:$n")
    assert [ids.of_call(call_id, "f") for call_id in ("a", "b")] == ["functions.f:0", "functions.f:1"]
    assert [ids.of_result(call_id) for call_id in ("b", "a")] == ["functions.f:1", "functions.f:0"]
    assert ids.of_call("functions.f:7", "f") == ids.of_result("functions.f:7") == "functions.f:7"
    assert ids.of_call("c", "g") == "functions.g:3"


def test_short_ids_are_equal_for_equal_ones():
    ids = KnownIds("short")
    assert ids.of_call("abcDEF123", "f") == "abcDEF123"
    made = ids.of_call("call_1", "f")
    assert (len(made), made) == (SHORT_ID_CHARS, ids.of_result("call_1"))


def test_other_families_take_any_id():
    assert KnownIds("").of_call("x", "f") == "x"
