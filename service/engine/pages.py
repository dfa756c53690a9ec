"""Which KV pages are free. Pure bookkeeping: a page is a number here, the bytes are the cache's."""

from collections.abc import Iterable, Sequence


class PageIntegrityError(AssertionError):
    """Pages were lost, or one page has two owners; a fault of ours."""


class PagePool:
    """A fixed number of pages, each free or owned by one sequence."""

    def __init__(self, num_pages: int) -> None:
        self.num_pages = num_pages
        # The last freed is taken first: its bytes are the likeliest to be in a cache of the hardware.
        self._free = list(range(num_pages - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Pages that can be allocated now."""
        return len(self._free)

    def can_allocate(self, num_pages: int) -> bool:
        """Tell whether so many pages are free."""
        return num_pages <= len(self._free)

    def allocate(self, num_pages: int) -> list[int]:
        """Take pages out of the pool; ask `can_allocate` first."""
        assert self.can_allocate(num_pages), f"{num_pages} pages wanted, {len(self._free)} free"
        taken = self._free[len(self._free) - num_pages :]
        del self._free[len(self._free) - num_pages :]
        return taken[::-1]

    def free(self, pages: Iterable[int]) -> None:
        """Put pages back."""
        self._free.extend(pages)

    def check_integrity(self, owned: Sequence[Iterable[int]]) -> None:
        """Check that free and owned pages are all pages, each once.

        Args:
            owned: the pages of each sequence.

        Raises:
            PageIntegrityError: they are not; the message has the numbers.
        """
        pages = [*self._free, *(page for pages in owned for page in pages)]
        if sorted(pages) != list(range(self.num_pages)):
            raise PageIntegrityError(
                f"free {len(self._free)} + owned {len(pages) - len(self._free)} should be the {self.num_pages} pages, "
                f"each once; {len(set(pages))} different ones are there"
            )
