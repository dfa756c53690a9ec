"""The policy that cuts prompts into prefill steps. Plain numbers: no sequence, no array."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from service.engine.shapes import PrefillShapes


@dataclass(frozen=True)
class Chunking:
    """Chooses how many prompts share a prefill step and how much of each it computes, by the cost in tokens."""

    shapes: PrefillShapes

    def choose_num_seqs(self, lengths: Sequence[int]) -> int:
        """Return how many of the waiting prompts share the next step: the number with the most tokens for its cost.

        Args:
            lengths: tokens that each prompt has left, in the order in which they are served; at least one.
        """

        def tokens_by_cost(num_seqs: int) -> float:
            cut = [min(length, self.shapes.width(num_seqs)) for length in lengths[:num_seqs]]
            return sum(cut) / self.cost(cut)

        candidates = (count for count in self.shapes.num_seqs if count // 2 < len(lengths))
        return max(candidates, key=tokens_by_cost)  # of equal ones the first, which has the fewest prompts

    def first_chunk(self, length: int) -> int:
        """Return how many of a prompt's tokens to compute first, if it has the step to itself.

        All of them in one padded step, or a full smaller step and another for the rest: whichever costs less.
        """
        sizes = self.shapes.chunk_sizes
        full = [size for size in sizes if size <= length]
        if not full or length >= sizes[-1]:
            return min(length, sizes[-1])
        in_two = full[-1] + self.shapes.step_cost_tokens + self._padded(length - full[-1])
        return full[-1] if in_two < self._padded(length) else length

    def cost(self, lengths: Iterable[int]) -> int:
        """Return what a step with chunks of these lengths costs, in tokens, padding included."""
        chunks = list(lengths)
        tokens = self._padded(chunks[0]) if len(chunks) == 1 else self.shapes.max_tokens
        return self.shapes.step_cost_tokens + tokens

    @property
    def prefill_budget(self) -> int:
        """What the prefill steps between two decode steps may cost together, in tokens: one full step."""
        return self.shapes.step_cost_tokens + self.shapes.max_tokens

    def _padded(self, length: int) -> int:
        return next((size for size in self.shapes.chunk_sizes if size >= length), self.shapes.chunk_sizes[-1])
