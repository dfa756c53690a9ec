import pytest

from service.engine.schedule.pages import PageIntegrityError, PagePool


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
    assert all(pool.register(page, key) for page, key in zip(pages, (b"a", b"ab"), strict=True))
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
    assert pool.register(first, b"a")
    assert not pool.register(second, b"a")
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
