import pytest

from service.engine.schedule.page_pool import PageIntegrityError, PagePool


def test_pages_are_given_once_until_they_are_released():
    pool = PagePool(5)
    first, second = pool.allocate(2), pool.allocate(3)
    assert sorted(first + second) == [0, 1, 2, 3, 4]
    assert not pool.can_allocate(1)
    pool.release(first)
    assert sorted(pool.allocate(2)) == sorted(first)


def test_a_registered_page_is_found_until_room_is_needed():
    pool = PagePool(3)
    pages = pool.allocate(2)
    for page, key in zip(pages, (b"a", b"ab"), strict=True):
        pool.register(page, key)
    pool.release(pages)
    assert pool.num_available == 3
    assert pool.find([b"a", b"ab", b"abc"]) == pages
    assert pool.find([b"x", b"a"]) == []
    pool.allocate(2)
    assert pool.find([b"a", b"ab"]) == pages[:1]  # the end of a prefix goes before its beginning


def test_a_shared_page_stays_until_its_last_holder_lets_go():
    pool = PagePool(2)
    [page] = pool.allocate(1)
    pool.register(page, b"a")
    pool.share([page])
    pool.release([page])
    pool.check_integrity([[page]])
    assert not pool.can_allocate(2)
    pool.release([page])
    assert pool.can_allocate(2)


def test_the_least_recently_used_page_is_evicted_first():
    pool = PagePool(3)
    pages = pool.allocate(3)
    for page, key in zip(pages, (b"a", b"b", b"c"), strict=True):
        pool.register(page, key)
        pool.release([page])
    pool.share(pool.find([b"a"]))
    pool.release(pages[:1])
    pool.allocate(1)
    assert [pool.find([key]) != [] for key in (b"a", b"b", b"c")] == [True, False, True]


def test_the_same_content_is_registered_once():
    pool = PagePool(2)
    first, second = pool.allocate(2)
    pool.register(first, b"a")
    pool.register(second, b"a")
    assert pool.find([b"a"]) == [first]
    pool.release([first])
    pool.release([second])
    pool.check_integrity([])


def test_a_lost_page_is_found():
    pool = PagePool(4)
    pool.allocate(2)
    with pytest.raises(PageIntegrityError, match="2 free, 0 evictable and 0 held should be the 4 pages"):
        pool.check_integrity([])


def test_a_page_with_an_uncounted_holder_is_found():
    pool = PagePool(4)
    pages = pool.allocate(2)
    with pytest.raises(PageIntegrityError, match="3 holds are claimed and 2 counted"):
        pool.check_integrity([pages, pages[:1]])


def test_the_page_freed_last_is_taken_first():
    pool = PagePool(4)
    first, second, _ = pool.allocate(3)
    pool.release([second])
    pool.release([first])
    assert pool.allocate(2) == [first, second]


def test_a_page_that_was_given_up_by_one_holder_stays_with_the_others():
    pool = PagePool(2)
    [page] = pool.allocate(1)
    pool.register(page, b"a")
    pool.share([page])
    pool.share([page])
    for num_holders in (3, 2, 1):
        pool.check_integrity([[page]] * num_holders)
        pool.release([page])
    assert pool.find([b"a"]) == [page]
    pool.check_integrity([])


def test_free_pages_are_taken_before_any_content_is_lost():
    pool = PagePool(2)
    [page] = pool.allocate(1)
    pool.register(page, b"a")
    pool.release([page])
    [other] = pool.allocate(1)
    assert other != page
    assert pool.find([b"a"]) == [page]
    assert pool.allocate(1) == [page]
    assert pool.find([b"a"]) == []


def test_a_page_is_registered_again_under_its_own_key():
    pool = PagePool(1)
    [page] = pool.allocate(1)
    pool.register(page, b"a")
    pool.register(page, b"a")
    assert pool.find([b"a"]) == [page]


def test_unregistered_pages_are_free_when_they_are_released():
    pool = PagePool(3)
    pages = pool.allocate(3)
    pool.register(pages[0], b"a")
    pool.register(pages[2], b"c")
    pool.unregister(pages)
    pool.release(pages)
    assert [pool.find([key]) for key in (b"a", b"c")] == [[], []]
    assert sorted(pool.allocate(3)) == sorted(pages)
    pool.register(pages[0], b"a")
    pool.check_integrity([pages])


def test_more_pages_than_there_are_cannot_be_taken():
    pool = PagePool(2)
    assert pool.can_allocate(2)
    assert not pool.can_allocate(3)
    with pytest.raises(AssertionError, match="3 pages wanted, 2 available"):
        pool.allocate(3)


def test_held_pages_in_right_number_pass_the_check():
    pool = PagePool(4)
    first, second = pool.allocate(2), pool.allocate(1)
    pool.share(first[:1])
    pool.check_integrity([first, second, first[:1]])
    with pytest.raises(PageIntegrityError, match="1 free, 0 evictable and 3 held should be the 4 pages"):
        pool.check_integrity([first, second])
