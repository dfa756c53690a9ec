"""Who holds which KV page, and which pages hold a known prefix. Pure bookkeeping: a page is a number here.

held         by one sequence or several that share it
remembered   by none, but its content has a key and can be found again; evicted when room is needed, oldest first
free         by none, content unknown
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class PageIntegrityError(AssertionError):
    """Pages were lost, or counted wrongly; a fault of ours."""


class PagePool:
    """A fixed number of pages with reference counts and a memory of what they hold."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        self._num_holders = [0] * num_pages
        # The last freed is taken first: its bytes are the likeliest to be in a cache of the hardware.
        self._free = list(range(num_pages - 1, -1, -1))
        self._remembered: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._key_of: dict[int, bytes] = {}
        self._page_of: dict[bytes, int] = {}

    @property
    def num_available(self) -> int:
        """Pages that can be allocated now, those included that are only remembered."""
        return len(self._free) + len(self._remembered)

    def can_allocate(self, num_pages: int) -> bool:
        """Tell whether so many pages are available."""
        return num_pages <= self.num_available

    def allocate(self, num_pages: int) -> list[int]:
        """Take pages whose content nobody knows; ask `can_allocate` first."""
        assert self.can_allocate(num_pages), f"{num_pages} pages wanted, {self.num_available} available"
        pages = [self._free.pop() if self._free else self._evict() for _ in range(num_pages)]
        for page in pages:
            self._num_holders[page] = 1
        return pages

    def find(self, keys: Iterable[bytes]) -> list[int]:
        """Return the pages that hold the longest known run of keys, from the first on."""
        pages = []
        for key in keys:
            page = self._page_of.get(key)
            if page is None:
                break
            pages.append(page)
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """Hold pages that were found, along with whoever else does."""
        for page in pages:
            self._remembered.pop(page, None)
            self._num_holders[page] += 1

    def remember(self, page: int, key: bytes) -> bool:
        """Give the content of a held page its key; False if another page has that content already."""
        if key in self._page_of:
            return self._page_of[key] == page
        assert page not in self._key_of, "a page's content does not change while it is held"
        self._key_of[page], self._page_of[key] = key, page
        return True

    def forget(self, pages: Iterable[int]) -> None:
        """Let nobody find these held pages again."""
        for page in pages:
            if (key := self._key_of.pop(page, None)) is not None:
                del self._page_of[key]

    def release(self, pages: Sequence[int]) -> None:
        """Let pages go, in the order of positions; the last ones are evicted before the first, which more may share."""
        for page in reversed(pages):
            self._num_holders[page] -= 1
            if self._num_holders[page] == 0:
                if page in self._key_of:
                    self._remembered[page] = None
                else:
                    self._free.append(page)

    def check_integrity(self, held: Sequence[Iterable[int]]) -> None:
        """Check that every page is held, remembered or free, and held by as many as say so.

        Args:
            held: the pages of each sequence.

        Raises:
            PageIntegrityError: it is not so; the message has the numbers.
        """
        num_holders = [0] * self.num_pages
        for pages in held:
            for page in pages:
                num_holders[page] += 1
        unheld = sorted([*self._free, *self._remembered])
        if num_holders != self._num_holders or unheld != [p for p, n in enumerate(num_holders) if n == 0]:
            raise PageIntegrityError(
                f"{len(self._free)} free, {len(self._remembered)} remembered and "
                f"{sum(1 for n in num_holders if n)} held should be the {self.num_pages} pages, each once; "
                f"{sum(num_holders)} holds are claimed and {sum(self._num_holders)} counted"
            )
        if {key: page for page, key in self._key_of.items()} != self._page_of:
            raise PageIntegrityError("the keys of pages and the pages of keys disagree")

    def _evict(self) -> int:
        page, _ = self._remembered.popitem(last=False)
        del self._page_of[self._key_of.pop(page)]
        return page
