"""How prompts are cut into prefill steps. Plain numbers: no sequence, no array."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from service.compile.buckets import geometric_sizes

SMALLEST_CHUNK = 16  # tokens


@dataclass(frozen=True)
class Chunking:
    """The sizes of prefill steps, and what a step costs besides its tokens."""

    max_tokens: int  # of one step
    rows: tuple[int, ...]  # how many prompts may share a step, from 1 on
    step_cost_tokens: int  # reading all weights takes as long as computing so many tokens

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The lengths, in tokens, of a step that one prompt has to itself."""
        if self.max_tokens <= 2 * SMALLEST_CHUNK:
            return (self.max_tokens,)
        if self.step_cost_tokens < 4 * SMALLEST_CHUNK:
            # Padding is most of what a short prompt could lose, so sizes lie close.
            return (SMALLEST_CHUNK, *geometric_sizes(4 * SMALLEST_CHUNK, self.max_tokens, factor=2))
        # Halving at the top, where padding costs most, and quartering below.
        return (*geometric_sizes(SMALLEST_CHUNK, self.max_tokens // 2, factor=4), self.max_tokens)

    def width(self, num_rows: int) -> int:
        """Return how long a row is at most, if so many share a step."""
        return self.max_tokens // num_rows

    def choose_rows(self, lengths: Sequence[int]) -> int:
        """Return how many of those that wait, one at least, shall share the next step: what is cheapest by token."""

        def tokens_by_cost(num_rows: int) -> float:
            cut = [min(length, self.width(num_rows)) for length in lengths[:num_rows]]
            return sum(cut) / self.cost(cut)

        return max((n for n in self.rows if n // 2 < len(lengths)), key=lambda n: (tokens_by_cost(n), -n))

    def first_chunk(self, length: int) -> int:
        """Return how much of a prompt to compute first, if it has the step to itself.

        All of it in one padded step, or a full smaller step and another for the rest: whichever is cheaper.
        """
        full = [size for size in self.sizes if size <= length]
        if not full or length >= self.sizes[-1]:
            return min(length, self.sizes[-1])
        in_two = full[-1] + self.step_cost_tokens + self._padded(length - full[-1])
        return full[-1] if in_two < self._padded(length) else length

    def cost(self, lengths: Iterable[int]) -> int:
        """Return what a step with rows of these lengths costs, in tokens, padding included."""
        rows = list(lengths)
        tokens = self._padded(rows[0]) if len(rows) == 1 else self.max_tokens
        return self.step_cost_tokens + tokens

    @property
    def cost_of_a_turn(self) -> int:
        """What prefill steps may cost together before decode steps have their turn: one full step."""
        return self.step_cost_tokens + self.max_tokens

    def _padded(self, length: int) -> int:
        return next((size for size in self.sizes if size >= length), self.sizes[-1])
