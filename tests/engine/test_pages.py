import pytest

from service.engine.pages import PageIntegrityError, PagePool


def test_pages_are_given_once_until_they_are_freed():
    pool = PagePool(5)
    first, second = pool.allocate(2), pool.allocate(3)
    assert sorted(first + second) == [0, 1, 2, 3, 4]
    assert not pool.can_allocate(1)
    pool.free(first)
    assert sorted(pool.allocate(2)) == sorted(first)


def test_a_lost_page_is_found():
    pool = PagePool(4)
    pool.allocate(2)
    with pytest.raises(PageIntegrityError, match="free 2 \\+ owned 0 should be the 4 pages"):
        pool.check_integrity([])


def test_a_page_with_two_owners_is_found():
    pool = PagePool(4)
    pages = pool.allocate(2)
    with pytest.raises(PageIntegrityError):
        pool.check_integrity([pages, pages[:1]])
