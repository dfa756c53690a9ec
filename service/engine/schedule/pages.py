"""KV pages: which sequences hold them, and the prefixes that they hold.

Pure bookkeeping: a page is a number here. It is in one of three states:

held         by one sequence, or by several that share it
evictable    not held, but registered under a key, so it can be found again; reused when room is needed, oldest first
free         not held, content unknown

A page's key is a hash of its tokens, of the media whose rows are in it, and of the previous page's key, so keys are
equal only where all that precedes the page's end is equal too. The first page's key hashes the request's memory and its
salt, so that one tenant cannot find, or time, what another sent.
"""

import hashlib
import secrets
from array import array
from collections import OrderedDict, abc
from collections.abc import Iterable

from service.engine.request import PlacedMedium
from service.engine.schedule.sequence import Sequence

KEY_BYTES = 16
# Random for each process, so that an attacker cannot construct two texts whose keys collide.
_PROCESS_SECRET = secrets.token_bytes(32)


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

    @property
    def num_available(self) -> int:
        """Pages that can be allocated now, evictable ones included."""
        return len(self._free) + len(self._evictable)

    def can_allocate(self, num_pages: int) -> bool:
        """Return whether so many pages are available."""
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

    def share(self, pages: Iterable[int]) -> None:
        """Hold pages that were found, along with their other holders."""
        for page in pages:
            self._evictable.pop(page, None)
            self._num_holders[page] += 1

    def register(self, page: int, key: bytes) -> None:
        """Make a held page findable by the key of its content, unless another page has that key already."""
        if key in self._page_of:
            return
        assert page not in self._key_of, "a page's content does not change while it is held"
        self._key_of[page], self._page_of[key] = key, page

    def unregister(self, pages: Iterable[int]) -> None:
        """Make held pages impossible to find."""
        for page in pages:
            if (key := self._key_of.pop(page, None)) is not None:
                del self._page_of[key]

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
        del self._page_of[self._key_of.pop(page)]
        return page


class SequencePages:
    """Connects sequences with the pool."""

    def __init__(self, *, num_pages: int, page_size: int) -> None:
        self.pool = PagePool(num_pages)
        self._page_size = page_size

    def pages_for(self, num_positions: int) -> int:
        """Return how many pages hold so many positions."""
        return -(-num_positions // self._page_size)

    def find_prefix(self, sequence: Sequence) -> None:
        """Share the pages that hold the sequence's beginning already; at least one token is left to compute."""
        if sequence.pages:  # it has begun
            return
        request = sequence.request
        needs_all = request.num_prompt_logprobs is not None or request.probe is not None or bool(request.heads)
        if needs_all and not sequence.output_ids:
            return  # a cached position has no logits
        known = sequence.known_ids
        self._extend_keys(sequence)
        found = self.pool.find(sequence.page_keys[: (len(known) - 1) // self._page_size])
        self.pool.share(found)
        sequence.pages = found
        sequence.num_computed = len(found) * self._page_size
        sequence.num_registered = len(found)
        if not sequence.output_ids:
            sequence.num_cached_tokens = sequence.num_computed

    def next_page_key(self, sequence: Sequence) -> bytes | None:
        """Return the key of the first whole page that is not computed yet; None if the rest is shorter than a page."""
        return next(iter(sequence.page_keys[sequence.num_computed // self._page_size :]), None)

    def register(self, sequence: Sequence, num_positions: int) -> None:
        """Make the whole pages among the first `num_positions`, whose tokens are known, findable."""
        self._extend_keys(sequence)
        last = num_positions // self._page_size
        for index in range(sequence.num_registered, last):
            self.pool.register(sequence.pages[index], sequence.page_keys[index])
        sequence.num_registered = max(sequence.num_registered, last)

    def release(self, sequence: Sequence) -> None:
        """Release all pages of a sequence that has its slot still; registered ones stay findable."""
        self.pool.release(sequence.pages)
        sequence.pages = []

    def _extend_keys(self, sequence: Sequence) -> None:
        extend_keys(sequence.page_keys, sequence.root_key, sequence.known_ids, self._page_size, sequence.request.media)


def root_key(salt: bytes, digest: bytes = b"", adapter: bytes = b"") -> bytes:
    """Return the key that precedes the first page's.

    Args:
        salt: the request's.
        digest: of the sequence's memory; empty for none.
        adapter: the digest of its adapter; empty for none.
    """
    # Defends against T36.
    parts = (salt, adapter)
    return page_key(b"".join(len(part).to_bytes(4, "big") + part for part in parts), digest)


def page_key(previous: bytes, content: bytes) -> bytes:
    """Return the key of a page, from the key of the page before and its content."""
    return hashlib.blake2b(previous + content, digest_size=KEY_BYTES, key=_PROCESS_SECRET).digest()


def extend_keys(
    keys: list[bytes],
    root: bytes,
    token_ids: abc.Sequence[int],
    page_size: int,
    media: abc.Sequence[PlacedMedium] = (),
) -> None:
    """Add the key of every whole page of `token_ids` that has none yet.

    Args:
        keys: the keys of the first pages; extended in place.
        root: the result of `root_key`.
        token_ids: all tokens from position 0 on.
        page_size: tokens of a page.
        media: what takes the places of some tokens.
    """
    for start in range(len(keys) * page_size, len(token_ids) - page_size + 1, page_size):
        page = array("i", token_ids[start : start + page_size]).tobytes()
        for placed in media:
            # Defends against T32.
            if placed.start < start + page_size and start < placed.end:
                page += placed.medium.digest + (start - placed.start).to_bytes(8, "big", signed=True)
        previous = keys[-1] if keys else root
        keys.append(page_key(previous, page))
