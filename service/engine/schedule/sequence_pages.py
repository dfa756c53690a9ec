"""The pages of sequences: finding cached prefixes, registering whole pages, and collecting the copies for both."""

from service.engine.schedule.pages import PagePool
from service.engine.schedule.plan import PageCopy
from service.engine.schedule.prefix_key import extend_keys
from service.engine.schedule.sequence import Sequence
from service.engine.shapes import CopyKind


class SequencePages:
    """Connects sequences with the pool. A copy is collected whether or not the kernel needs it."""

    def __init__(self, *, num_pages: int, page_size: int) -> None:
        self.pool = PagePool(num_pages)
        self._page_size = page_size
        self._copies: list[PageCopy] = []  # before the next step
        self._later_copies: list[PageCopy] = []  # of what the step being planned computes: before the step after it

    def pages_for(self, num_positions: int) -> int:
        """Return how many pages hold so many positions."""
        return -(-num_positions // self._page_size)

    def begin_plan(self) -> None:
        """Let the copies of what the previous step computed run before the step that is planned now."""
        self._copies += self._later_copies
        self._later_copies = []

    def take_copies(self) -> list[PageCopy]:
        """Hand over the copies that must run before the step that was just planned."""
        copies, self._copies = self._copies, []
        return copies

    def find_prefix(self, sequence: Sequence) -> None:
        """Share the pages that hold the sequence's beginning already; at least one token is left to compute."""
        if sequence.num_computed > 0 or sequence.pages:
            return
        if sequence.request.num_prompt_logprobs is not None and not sequence.output_ids:
            return  # a cached position has no logits
        known = sequence.known_ids
        extend_keys(sequence.page_keys, sequence.root_key, known, self._page_size)
        found = self.pool.find(sequence.page_keys[: (len(known) - 1) // self._page_size])
        self.pool.share(found)
        sequence.pages = found
        sequence.num_computed = len(found) * self._page_size
        sequence.num_registered = len(found)
        if not sequence.output_ids:
            sequence.num_cached_tokens = sequence.num_computed
        if found:
            self._copies.append(PageCopy(CopyKind.RESTORE, sequence.slot, 0, tuple(found)))

    def next_page_key(self, sequence: Sequence) -> bytes | None:
        """Return the key of the first whole page that is not computed yet; None if the rest is shorter than a page."""
        return next(iter(sequence.page_keys[sequence.num_computed // self._page_size :]), None)

    def register(self, sequence: Sequence, num_positions: int) -> None:
        """Make the whole pages among the first `num_positions`, whose tokens are known, findable."""
        extend_keys(sequence.page_keys, sequence.root_key, sequence.known_ids, self._page_size)
        last = num_positions // self._page_size
        fresh = []
        for index in range(sequence.num_registered, last):
            if self.pool.register(sequence.pages[index], sequence.page_keys[index]):
                fresh.append(index)
        sequence.num_registered = max(sequence.num_registered, last)
        if fresh:
            pages = tuple(sequence.pages[index] for index in range(fresh[0], fresh[-1] + 1))
            self._later_copies.append(PageCopy(CopyKind.SAVE, sequence.slot, fresh[0], pages))

    def release(self, sequence: Sequence) -> None:
        """Release all pages of a sequence that has its slot still; registered ones stay findable."""
        self.pool.release(sequence.pages)
        sequence.pages = []
