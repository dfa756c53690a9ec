from service.engine.schedule.prefix_key import extend_keys, root_key


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
