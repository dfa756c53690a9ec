"""Drafts from a text itself: what followed the last time that its latest tokens occurred.

    known     … the | cat | sat | on | the | cat | sat          proposed: on, the, cat, sat, on
                      ^^^^^^^^^^   ^^         ^^^^^^^^^
                      occurred     followed   latest tokens

Source: Saxena 2023, https://github.com/apoorvumang/prompt-lookup-decoding
"""

from collections.abc import Sequence as Tokens
from operator import mul

import numpy as np
from jaxtyping import Int32

# How many latest tokens must have occurred, the most first: few passages share these.
ORDERS = (8, 3)
MAX_PLACES = 1 << 16  # of an order, so that an index takes at most half a megabyte
PLACES_PER_TOKEN = 16  # of a short text, so that few n-grams share one
FEW_TOKENS = 32  # that are added one by one faster than all at once
BITS = 32
FACTORS = tuple(pow(0x9E3779B1, exponent, 1 << BITS) for exponent in range(1, max(ORDERS) + 1))


class NgramIndex:
    """Finds where the latest tokens of a text occurred before, the latest occurrence first.

    A table for each order maps a hash of as many tokens to the position after them. A later occurrence replaces an
    earlier one, and so does another n-gram of the same hash: what is found is compared. So the time is linear in the
    length of the text, whatever it says, and the memory does not depend on it.
    """

    def __init__(self, token_ids: Tokens[int], max_len: int) -> None:
        """Index nothing yet.

        Args:
            token_ids: the text, which grows at its end.
            max_len: the most tokens that it will have.
        """
        self._token_ids = token_ids
        self._num_indexed = 0  # leading tokens, of which each n-gram that ends before the last of them is indexed
        bits = (min(PLACES_PER_TOKEN * max(max_len, 1), MAX_PLACES) - 1).bit_length()
        self._shift = BITS - bits
        self._tables: tuple[Int32[np.ndarray, " place"], ...] = tuple(np.zeros(1 << bits, np.int32) for _ in ORDERS)

    @property
    def num_bytes(self) -> int:
        """The memory that it takes, besides the text."""
        return sum(table.nbytes for table in self._tables)

    def extend(self) -> None:
        """Index the tokens that the text has got since the last time."""
        first, end = self._num_indexed, len(self._token_ids)
        if end - first <= FEW_TOKENS:
            for position in range(max(first, 1), end):
                for order, table in zip(ORDERS, self._tables, strict=True):
                    if position >= order:
                        table[self._place(self._token_ids[position - order : position])] = position
        else:
            for order, table in zip(ORDERS, self._tables, strict=True):
                self._extend_at_once(order, table, max(first, order), end)
        self._num_indexed = end

    def find(self, latest: Tokens[int]) -> int | None:
        """Return the position after the last occurrence of the latest tokens, of as many as have occurred; or None."""
        for order, table in zip(ORDERS, self._tables, strict=True):
            ngram = latest[-order:]
            if len(ngram) == order:
                position = int(table[self._place(ngram)])
                if position and self._token_ids[position - order : position] == ngram:
                    return position
        return None

    def _place(self, ngram: Tokens[int]) -> int:
        return (sum(map(mul, ngram, FACTORS)) & (1 << BITS) - 1) >> self._shift

    def _extend_at_once(self, order: int, table: Int32[np.ndarray, " place"], first: int, end: int) -> None:
        """Index the n-grams that end before the positions from `first` to `end`."""
        if first >= end:
            return
        token_ids = np.array(self._token_ids[first - order : end - 1], np.uint32)
        count = end - first
        hashes = np.zeros(count, np.uint32)
        for offset in range(order):
            hashes += token_ids[offset : offset + count] * np.uint32(FACTORS[offset])
        table[hashes >> np.uint32(self._shift)] = np.arange(first, end, dtype=np.int32)  # the last of equals remains


def continued(token_ids: Tokens[int], position: int, limit: int) -> list[int]:
    """Return the tokens of a text from a position on, going on at its end with those that are returned already."""
    found = list(token_ids[position : position + limit])
    while len(found) < limit:
        found.append(found[len(found) + position - len(token_ids)])
    return found
