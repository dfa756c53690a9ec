"""The memories of sequences: an encoder's outputs, in pages that are found by what was encoded.

The pages are those of the cache if sequences attend to keys and values, or a pool of their own of places for rows.

A memory is encoded in parts, one between two steps, and one memory after the other. Sequences that begin meanwhile with
the same medium share it; once nobody holds it, its pages stay findable until they are needed.
"""

from collections.abc import Callable

from service.engine.request import Medium
from service.engine.schedule.memory import EncoderPart, Memory
from service.engine.schedule.page_pool import PagePool
from service.engine.schedule.pages import page_key


class Memories:
    """The memories that sequences hold."""

    def __init__(self, pool: PagePool, *, num_pages: Callable[[Medium], int], num_parts: int) -> None:
        """Connect them with the pool.

        Args:
            pool: the pages that memories take theirs from.
            num_pages: returns how many pages the memory of a medium has.
            num_parts: in how many parts a medium is encoded.
        """
        self._pool, self._num_pages, self._num_parts = pool, num_pages, num_parts
        self._held: dict[bytes, Memory] = {}
        self._encoding: Memory | None = None
        self.num_asked = self.num_found = 0  # the latter were encoded before, or were being encoded

    @property
    def held(self) -> list[list[int]]:
        """The pages of every memory that is held."""
        return [memory.pages for memory in self._held.values()]

    def num_missing(self, medium: Medium, root: bytes) -> int:
        """Return how many pages would have to be allocated, or shared that nobody holds, to hold a memory."""
        return 0 if root in self._held else self._num_pages(medium)

    def hold(self, medium: Medium, root: bytes) -> Memory:
        """Hold the memory of a medium, whose pages are available; `root` precedes the keys of its pages."""
        self.num_asked += 1
        memory = self._held.get(root)
        if memory is not None:
            memory.num_holders += 1
            self.num_found += 1
            return memory
        num_pages = self._num_pages(medium)
        found = self._pool.find(_keys(root, num_pages))
        is_whole = len(found) == num_pages
        if is_whole:
            self._pool.share(found)
            self.num_found += 1
        pages = found if is_whole else self._pool.allocate(num_pages)
        memory = self._held[root] = Memory(medium, root, pages, self._num_parts if is_whole else 0)
        return memory

    def release(self, memory: Memory, *, is_broken: bool = False) -> None:
        """Give up one hold of a memory; one that is broken is not found again."""
        memory.num_holders -= 1
        if is_broken:
            self._pool.unregister(memory.pages)
        if memory.num_holders == 0:
            del self._held[memory.root]
            self._pool.release(memory.pages)
            if self._encoding is memory:
                self._encoding = None

    def forget(self, medium: Medium, root: bytes) -> None:
        """Make a memory impossible to find again."""
        found = self._pool.find(_keys(root, self._num_pages(medium)))
        self._pool.share(found)
        self._pool.unregister(found)
        self._pool.release(found)

    def is_encoded(self, memory: Memory) -> bool:
        """Return whether every part of its encoding was planned, so that steps planned later find it whole."""
        return memory.num_parts == self._num_parts

    @property
    def has_part(self) -> bool:
        """Whether some memory is not encoded."""
        return any(not self.is_encoded(memory) for memory in self._held.values())

    def next_part(self) -> EncoderPart:
        """Plan the next part of the memory that is being encoded, or of the one that was held first."""
        if self._encoding is None:
            self._encoding = next(memory for memory in self._held.values() if not self.is_encoded(memory))
        memory = self._encoding
        part = EncoderPart(memory, memory.num_parts, is_last=memory.num_parts == self._num_parts - 1)
        memory.num_parts += 1
        if part.is_last:
            self._encoding = None
            for page, key in zip(memory.pages, _keys(memory.root, len(memory.pages)), strict=True):
                self._pool.register(page, key)
        return part


def _keys(root: bytes, num_pages: int) -> list[bytes]:
    return [page_key(root, number.to_bytes(4, "big")) for number in range(num_pages)]
