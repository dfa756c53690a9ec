import hashlib
from array import array

from service.engine.schedule.pages import KEY_BYTES, extend_keys, root_key


def keys_of(token_ids, salt=b"", page_size=4):
    keys = []
    extend_keys(keys, root_key(salt), token_ids, page_size)
    return keys


def test_only_whole_pages_have_a_key():
    assert [len(keys_of(range(n))) for n in (3, 4, 7, 8)] == [0, 1, 1, 2]


def test_a_key_stands_for_all_that_came_before():
    assert keys_of([1, 2, 3, 4, 5, 6, 7, 8])[0] == keys_of([1, 2, 3, 4, 9, 9, 9, 9])[0]
    assert keys_of([1, 2, 3, 4, 5, 6, 7, 8])[1] != keys_of([0, 2, 3, 4, 5, 6, 7, 8])[1]


def test_another_salt_or_conditioning_finds_nothing():
    assert keys_of(range(4), salt=b"tenant a") != keys_of(range(4), salt=b"tenant b")
    assert root_key(b"a", b"image 1") != root_key(b"a", b"image 2")
    assert root_key(b"ab", b"c") != root_key(b"a", b"bc")


def test_keys_are_extended_where_they_ended():
    keys = keys_of(range(4))
    extend_keys(keys, root_key(b""), range(12), 4)
    assert keys == keys_of(range(12))


def test_every_earlier_page_and_the_salt_change_the_key_of_a_later_one():
    later = {keys_of([*changed, 5, 6, 7, 8, 9, 10, 11, 12])[2] for changed in ([1, 2, 3, 4], [1, 2, 3, 0])}
    later |= {keys_of([1, 2, 3, 4, *changed, 9, 10, 11, 12])[2] for changed in ([5, 6, 7, 8], [5, 6, 7, 0])}
    later.add(keys_of(range(1, 13), salt=b"tenant")[2])
    assert len(later) == 4  # the same tokens twice, and three changes


def test_equal_pages_have_other_keys_at_other_places():
    assert len(set(keys_of([1, 2, 3, 4] * 3))) == 3


def test_no_conditioning_is_the_empty_one():
    assert root_key(b"a") == root_key(b"a", b"")


def test_a_key_cannot_be_computed_outside_the_process():
    page = array("i", range(4)).tobytes()
    for secret in (b"", b"\0" * 32):
        assert root_key(b"") != hashlib.blake2b(bytes(4), digest_size=KEY_BYTES, key=secret).digest()
        guessed = hashlib.blake2b(root_key(b"") + page, digest_size=KEY_BYTES, key=secret).digest()
        assert keys_of(range(4)) != [guessed]
    assert len(root_key(b"")) == len(keys_of(range(4))[0]) == 16
