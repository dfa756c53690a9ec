"""A fixed number of pages, or of slots of states, and an index of what they hold.

Pure bookkeeping: a page is a number here. It is in one of three states:

held         by one sequence, or by several that share it
evictable    not held, but registered under a key, so it can be found again; reused when room is needed, oldest first
free         not held, content unknown
"""

from collections import Counter, OrderedDict, abc
from collections.abc import Iterable


class PageIntegrityError(AssertionError):
    """Pages were lost or counted wrongly: a defect of the scheduler."""


class PagePool:
    """A fixed number of pages with reference counts, and an index of their contents by key."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._num_holders = [0] * num_pages
        # A stack: the page freed last is the likeliest to be in a hardware cache.
        self._free = list(range(num_pages - 1, -1, -1))
        self._evictable: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._key_of: dict[int, bytes] = {}
        self._page_of: dict[bytes, int] = {}
        # Of registered pages that are not a text's first, the key of the one before.
        self._previous: dict[int, bytes] = {}
        self._num_next: Counter[bytes] = Counter()  # registered pages that follow the page of a key
        self._branches: set[int] = set()  # registered pages that lie before a place where texts part

    @property
    def num_available(self) -> int:
        """Pages that can be allocated now, evictable ones included."""
        return len(self._free) + len(self._evictable)

    def can_allocate(self, num_pages: int) -> bool:
        """Return whether `num_pages` pages are available."""
        return num_pages <= self.num_available

    def allocate(self, num_pages: int) -> list[int]:
        """Take pages of unknown content: free ones first, then evictable ones. Check `can_allocate` before."""
        assert self.can_allocate(num_pages), f"{num_pages} pages wanted, {self.num_available} available"
        pages = [self._free.pop() if self._free else self._evict() for _ in range(num_pages)]
        for page in pages:
            self._num_holders[page] = 1
        return pages

    def find(self, keys: Iterable[bytes]) -> list[int]:
        """Return the pages of the longest registered run of keys, from the first key on."""
        pages = []
        for key in keys:
            page = self._page_of.get(key)
            if page is None:
                break
            pages.append(page)
        return pages

    def last_missing(self, keys: abc.Sequence[bytes]) -> int | None:
        """Return the place of the last key that no page has; None if each has one."""
        return next((place for place in range(len(keys) - 1, -1, -1) if keys[place] not in self._page_of), None)

    def share(self, pages: Iterable[int]) -> None:
        """Hold pages that were found, along with their other holders."""
        for page in pages:
            self._evictable.pop(page, None)
            self._num_holders[page] += 1

    def num_holders(self, page: int) -> int:
        """Return how many hold a page."""
        return self._num_holders[page]

    def is_registered(self, page: int) -> bool:
        """Return whether a page can be found."""
        return page in self._key_of

    def has_next(self, key: bytes) -> bool:
        """Return whether a page can be found that follows the page of a key."""
        return self._num_next[key] > 0

    def register(self, page: int, key: bytes, previous: bytes | None = None) -> None:
        """Make a held page findable by the key of its content, unless another page has that key already.

        Args:
            page: the page.
            key: its key.
            previous: the key of the page before it; None for a text's first.
        """
        if key in self._page_of:
            return
        assert page not in self._key_of, "a page's content does not change while it is held"
        self._key_of[page], self._page_of[key] = key, page
        if previous is not None:
            self._previous[page] = previous
            self._num_next[previous] += 1

    def unregister(self, pages: Iterable[int]) -> None:
        """Make held pages impossible to find."""
        for page in pages:
            if page in self._key_of:
                self._leave_index(page)

    def forget(self, keys: Iterable[bytes]) -> None:
        """Make the pages of these keys impossible to find, whether they are held or not."""
        for key in keys:
            if (page := self._page_of.get(key)) is not None:
                self._leave_index(page)
                if page in self._evictable:
                    del self._evictable[page]
                    self._free.append(page)

    def demote(self, key: bytes) -> None:
        """Make the page of a key the first to be evicted, unless it is held."""
        page = self._page_of.get(key)
        if page in self._evictable:
            self._evictable.move_to_end(page, last=False)

    def give_up(self, page: int) -> None:
        """Release a page that is of less use to others than those released before: it is the first to be evicted."""
        self.release([page])
        if page in self._evictable:
            self._evictable.move_to_end(page, last=False)

    def release_at_branch(self, page: int) -> None:
        """Release a page that others will want."""
        if page in self._key_of:
            self._branches.add(page)
        self.release([page])

    def are_at_branch(self, pages: Iterable[int]) -> bool:
        """Return whether some of the pages were released as those of a branch."""
        return not self._branches.isdisjoint(pages)

    def release(self, pages: list[int]) -> None:
        """Release a sequence's pages, given in the order of positions.

        The last pages become the first to be evicted: more sequences may share the beginning of a prefix than its end.
        """
        for page in reversed(pages):
            self._num_holders[page] -= 1
            if self._num_holders[page] == 0:
                if page in self._key_of:
                    self._evictable[page] = None
                else:
                    self._free.append(page)

    def check_integrity(self, held: Iterable[Iterable[int]]) -> None:
        """Check that every page is held, evictable or free, and that its holders are counted.

        Args:
            held: the pages of each sequence.

        Raises:
            PageIntegrityError: a page is lost or counted wrongly; the message has the numbers.
        """
        num_holders = [0] * self.num_pages
        for pages in held:
            for page in pages:
                num_holders[page] += 1
        unheld = sorted([*self._free, *self._evictable])
        if num_holders != self._num_holders or unheld != [p for p, n in enumerate(num_holders) if n == 0]:
            raise PageIntegrityError(
                f"{len(self._free)} free, {len(self._evictable)} evictable and "
                f"{sum(1 for n in num_holders if n)} held should be the {self.num_pages} pages, each once; "
                f"{sum(num_holders)} holds are claimed and {sum(self._num_holders)} counted"
            )
        if {key: page for page, key in self._key_of.items()} != self._page_of:
            raise PageIntegrityError("the keys of pages and the pages of keys disagree")

    def _evict(self) -> int:
        page, _ = self._evictable.popitem(last=False)
        self._leave_index(page)
        return page

    def _leave_index(self, page: int) -> None:
        del self._page_of[self._key_of.pop(page)]
        self._branches.discard(page)
        if (previous := self._previous.pop(page, None)) is not None:
            self._num_next[previous] -= 1
            if self._num_next[previous] == 0:
                del self._num_next[previous]
