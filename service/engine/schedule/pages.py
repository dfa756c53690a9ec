"""KV pages: which sequences hold them, and the prefixes that they hold.

A page's key is a hash of its tokens, of the media whose rows are in it, and of the previous page's key, so keys are
equal only where all that precedes the page's end is equal too. The first page's key hashes the request's memory and its
salt, so that one tenant cannot find, or time, what another sent.
"""

import hashlib
import secrets
from array import array
from collections import abc
from itertools import takewhile

from service.engine.request import PlacedMedium, Request
from service.engine.schedule.page_pool import PagePool
from service.engine.schedule.sequence import Sequence
from service.engine.schedule.states import SequenceStates
from service.engine.shapes import StateShapes, WindowShapes, step_pages, window_pages

KEY_BYTES = 16
# Random for each process, so that an attacker cannot construct two texts whose keys collide.
_PROCESS_SECRET = secrets.token_bytes(32)


class SequencePages:
    """Connects sequences with the pools: one of pages for whole sequences, and one for each window.

    A sequence holds of a window's pages only those that its next tokens see. Those before are given up as it goes on,
    and stay findable until they are evicted. A prefix is found if the pages of all of it are, and of each window those
    that the token after it sees.
    """

    def __init__(
        self,
        *,
        num_pages: int,
        page_size: int,
        windows: abc.Sequence[WindowShapes] = (),
        step_tokens: int = 0,
        states: StateShapes | None = None,
        row_tokens: int = 0,
    ) -> None:
        """Make the pools.

        Args:
            num_pages: for whole sequences.
            page_size: tokens of a page.
            windows: the pages of layers with a window.
            step_tokens: the most tokens of prompts in a step.
            states: the slots of states; None for a model whose layers keep none.
            row_tokens: of a row of a prompt.
        """
        self.pool = PagePool(num_pages)
        self.windows = tuple((shape, PagePool(shape.num_pages)) for shape in windows)
        self.states = None if states is None else SequenceStates(states, row_tokens=row_tokens, page_size=page_size)
        self._page_size, self._step_tokens = page_size, step_tokens

    def pages_for(self, num_positions: int) -> int:
        """Return the number of pages that hold `num_positions`."""
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
        self.extend_keys(sequence)
        keys = sequence.page_keys[: (len(known) - 1) // self._page_size]
        found = self.pool.find(keys)
        num_found = len(found)
        found = found[: self._longest_whole(keys[:num_found])]
        is_branch = len(found) < num_found and self.pool.has_next(keys[num_found - 1])
        self.pool.share(found)
        sequence.pages = found
        sequence.renew_version()
        for (shape, pool), held in zip(self.windows, sequence.windows, strict=True):
            held.first = self._first_page(shape, len(found) * self._page_size)
            held.pages = pool.find(keys[held.first : len(found)])
            is_branch = is_branch or pool.are_at_branch(held.pages)
            pool.share(held.pages)
        sequence.branch = num_found if is_branch else None
        if self.states is not None:
            self.states.take(sequence, len(found), num_found)
        sequence.num_computed = len(found) * self._page_size
        sequence.num_registered = len(found)
        if not sequence.output_ids:
            sequence.num_cached_tokens = sequence.num_computed

    def num_cached(self, keys: abc.Iterable[bytes]) -> int:
        """Return how many of the first tokens of a prompt are cached, reading the index only.

        Args:
            keys: those of its pages, of which no more are taken than are found, and one.
        """
        found = list(takewhile(lambda key: bool(self.pool.find([key])), keys))
        return self._longest_whole(found) * self._page_size

    def next_page_key(self, sequence: Sequence) -> bytes | None:
        """Return the key of the first whole page that is not computed yet; None if the rest is shorter than a page."""
        return next(iter(sequence.page_keys[sequence.num_computed // self._page_size :]), None)

    def register(self, sequence: Sequence, num_positions: int) -> None:
        """Make the whole pages among the first `num_positions`, whose tokens are known, findable."""
        self.extend_keys(sequence)
        last = num_positions // self._page_size
        for index in range(sequence.num_registered, last):
            previous = sequence.page_keys[index - 1] if index and self.windows else None
            self.pool.register(sequence.pages[index], sequence.page_keys[index], previous)
            for (_, pool), held in zip(self.windows, sequence.windows, strict=True):
                if index >= held.first:
                    pool.register(held.pages[index - held.first], sequence.page_keys[index])
        sequence.num_registered = max(sequence.num_registered, last)

    def release(self, sequence: Sequence) -> None:
        """Release all pages of a sequence that has its slot still; registered ones stay findable."""
        if self.states is not None:
            self.states.release(sequence)
        self.pool.release(sequence.pages)
        sequence.pages = []
        sequence.renew_version()
        for (_, pool), held in zip(self.windows, sequence.windows, strict=True):
            pool.release(held.pages)
            held.first, held.pages = 0, []

    def forget(self, sequence: Sequence) -> None:
        """Make the pages of a running sequence impossible to find, and those that it has given up too."""
        self.pool.unregister(sequence.pages)
        for _, pool in self.windows:
            pool.forget(sequence.page_keys)
        if self.states is not None:
            self.states.forget(sequence)

    def give_up_unseen(self, sequence: Sequence) -> None:
        """Release the pages that no token from the next one on sees; steps in flight were planned to run before.

        Most of them are of less use to others than what is cached already. But if a text parted from another where the
        pages of a window were missing, those before that place stay, and so do those before the prompt's end: the
        text's next turn may part from it there, as it does where reasoning is left out.
        """
        for (shape, pool), held in zip(self.windows, sequence.windows, strict=True):
            first = self._first_page(shape, sequence.next_start)
            if first <= held.first:
                continue
            self.register(sequence, min(sequence.next_start, len(sequence.known_ids)))
            branch = sequence.branch
            ends = () if branch is None else (branch, (sequence.prompt_len - 1) // self._page_size)
            kept = [range(self._first_page(shape, end * self._page_size), end) for end in ends]
            for number in range(held.first, first):
                page = held.pages[number - held.first]
                if any(number in pages for pages in kept):
                    pool.release_at_branch(page)
                else:
                    pool.give_up(page)
            held.first, held.pages = first, held.pages[first - held.first :]

    def holds(self, sequence: Sequence, num_positions: int) -> bool:
        """Return whether a sequence has all that `num_positions` need, as before most steps that decode."""
        if num_positions > len(sequence.pages) * self._page_size or self.states is not None:
            return False
        return not sequence.windows or all(num_positions <= held.end * self._page_size for held in sequence.windows)

    def can_grow(self, sequence: Sequence, num_positions: int) -> bool:
        """Return whether a sequence can be given the pages of `num_positions`."""
        needed = self.pages_for(num_positions)
        if not self.pool.can_allocate(max(needed - len(sequence.pages), 0)):
            return False
        if self.states is not None and not self.states.can_grow(sequence):
            return False
        return all(
            pool.can_allocate(max(needed - held.end, 0))
            for (_, pool), held in zip(self.windows, sequence.windows, strict=True)
        )

    def grow(self, sequence: Sequence, num_positions: int) -> None:
        """Give a sequence the pages of `num_positions`; check `can_grow` before."""
        needed = self.pages_for(num_positions)
        if needed > len(sequence.pages):
            sequence.pages += self.pool.allocate(needed - len(sequence.pages))
        for (_, pool), held in zip(self.windows, sequence.windows, strict=True):
            if needed > held.end:
                held.pages += pool.allocate(needed - held.end)
        if self.states is not None:
            self.extend_keys(sequence)
            self.states.grow(sequence)

    def give_back(self, sequence: Sequence, num_positions: int) -> None:
        """Release the pages behind those of `num_positions`, which held tokens that were drafted and rejected."""
        needed = self.pages_for(num_positions)
        if needed < len(sequence.pages):  # where those of windows end too
            sequence.renew_version()
        self.pool.release(sequence.pages[needed:])
        del sequence.pages[needed:]
        for (_, pool), held in zip(self.windows, sequence.windows, strict=True):
            kept = max(needed - held.first, 0)
            pool.release(held.pages[kept:])
            del held.pages[kept:]

    def fit_windows(self, sequence: Sequence, prefilling: abc.Sequence[Sequence]) -> bool:
        """Return whether the windows of a sequence's prefill fit in addition to those in progress."""
        lengths = [self.pages_for(len(sequence.known_ids)), *(self.pages_for(s.prefill_len) for s in prefilling)]
        for number, (shape, pool) in enumerate(self.windows):
            at_rest = [min(length, window_pages(shape.window, self._page_size)) for length in lengths]
            held = [0, *(len(s.windows[number].pages) for s in prefilling)]
            missing = sum(max(needed - own, 0) for needed, own in zip(at_rest, held, strict=True))
            longest = max(length - needed for length, needed in zip(lengths, at_rest, strict=True))
            if not pool.can_allocate(missing + min(longest, step_pages(self._step_tokens, self._page_size))):
                return False
        return True

    def _first_page(self, shape: WindowShapes, position: int) -> int:
        """Return the number of the first page that a token at a position sees."""
        return shape.first_needed(position) // self._page_size

    def _longest_whole(self, keys: abc.Sequence[bytes]) -> int:
        """Return the number of the most leading pages after which a sequence can go on."""
        longest = self._longest_seen(keys)
        if self.states is None:
            return longest
        while (kept := self.states.longest_kept(keys[:longest])) != (seen := self._longest_seen(keys[:kept])):
            longest = seen
        return kept

    def _longest_seen(self, keys: abc.Sequence[bytes]) -> int:
        """Return the number of the most leading pages after which each window's pages are there."""
        longest = len(keys)
        while longest > 0:
            shorter = longest
            for shape, pool in self.windows:
                first = self._first_page(shape, longest * self._page_size)
                missing = pool.last_missing(keys[first:longest])
                if missing is not None:
                    shorter = min(shorter, first + missing)
            if shorter == longest:
                break
            longest = shorter
        return longest

    def extend_keys(self, sequence: Sequence) -> None:
        """Give every whole page of a sequence's known tokens its key."""
        extend_keys(sequence.page_keys, sequence.root_key, sequence.known_ids, self._page_size, sequence.request.media)


def prompt_keys(request: Request, page_size: int) -> abc.Iterator[bytes]:
    """Yield the keys of the pages of a prompt that may be found: at least one token is left to compute."""
    return _next_keys(root_key_of(request), 0, request.prompt_ids[:-1], page_size, request.media)


def root_key_of(request: Request) -> bytes:
    """Return the key that precedes the first page's of a request."""
    digest = b"" if request.memory is None else request.memory.digest
    return root_key(request.cache_salt, digest, b"" if request.adapter is None else request.adapter.digest)


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
    keys.extend(_next_keys(keys[-1] if keys else root, len(keys) * page_size, token_ids, page_size, media))


def _next_keys(
    previous: bytes,
    first: int,
    token_ids: abc.Sequence[int],
    page_size: int,
    media: abc.Sequence[PlacedMedium],
) -> abc.Iterator[bytes]:
    """Yield the keys of the whole pages from the position `first` on."""
    for start in range(first, len(token_ids) - page_size + 1, page_size):
        page = array("i", token_ids[start : start + page_size]).tobytes()
        for placed in media:
            # Defends against T32.
            if placed.start < start + page_size and start < placed.end:
                page += placed.medium.digest + (start - placed.start).to_bytes(8, "big", signed=True)
        previous = page_key(previous, page)
        yield previous
