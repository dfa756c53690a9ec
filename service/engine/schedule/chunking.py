"""The policy that cuts prompts into steps. Plain numbers: no sequence, no array.

A step computes whole rows of prompts; see `service.engine.shapes`. Beside sequences that decode, it computes no more of
prompts than these sequences can wait for: `max_stall_s`, by default as long as two decode steps. What a token of a
prompt costs and how long a decode step takes is measured as steps run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from service.engine.shapes import EngineShapes

USUAL_STALL_STEPS = 2  # decode steps
FEWEST_TOKENS = 64  # of prompts in a step; with fewer, reading the weights would be most of its cost
WEIGHT_OF_LATEST = 0.2  # in the running means
LEAST_SHARE = 0.25  # of a step's time that its prompts take: one measured while the device was busy must not hide them


@dataclass
class Chunking:
    """Says how much of the waiting prompts the next step computes."""

    row_tokens: int
    num_rows: int  # of a step
    step_cost_tokens: int  # the time to read all weights, in tokens of prefill
    max_stall_s: float | None = None  # that prompts may add to a decode step; None for two decode steps
    decode_s: float | None = None  # of a decode step, on average over the latest
    _token_s: float | None = None  # of a prompt's token

    @classmethod
    def of(cls, shapes: EngineShapes, max_stall_s: float | None = None) -> "Chunking":
        """Return the policy for steps of these shapes."""
        return cls(shapes.row_tokens, shapes.row_counts[-1], shapes.prefill_step_cost_tokens, max_stall_s)

    def budget(self, num_decodes: int) -> int:
        """Return how many tokens of prompts a step may compute, beside a number of sequences that decode."""
        most = self.num_rows * self.row_tokens
        if num_decodes == 0:
            return most
        usual_s = None if self.decode_s is None else USUAL_STALL_STEPS * self.decode_s
        stall_s = usual_s if self.max_stall_s is None else self.max_stall_s
        if stall_s is None or self._token_s is None:
            affordable = USUAL_STALL_STEPS * (self.step_cost_tokens + num_decodes)
        else:
            affordable = int(stall_s / self._token_s)
        return min(max(affordable, FEWEST_TOKENS, self.row_tokens), most)

    def end(
        self,
        start: int,
        length: int,
        *,
        num_tokens: int,
        num_rows: int,
        blocks: Sequence[tuple[int, int]] = (),
        may_exceed: bool = False,
    ) -> int:
        """Return the position up to which a prompt is computed, which is the end of a row unless it is the prompt's.

        It is `start` if the step does not hold the block that comes next. It is the end of a block if the next one
        begins in the same row.

        Args:
            start: the first position that is not computed.
            length: tokens of the prompt.
            num_tokens: the most tokens that the step still takes.
            num_rows: the most rows that the step still takes.
            blocks: the positions that each begins and ends at, in their order, none of which a step may cut.
            may_exceed: whether one may have more tokens than the step takes.
        """
        first_row = start // self.row_tokens
        end = min(length, start + num_tokens, (first_row + num_rows) * self.row_tokens)
        end = end if end == length else max(self.begin_of_row(end), start)
        cut = next((number for number, (first, after) in enumerate(blocks) if first < end < after), None)
        if cut is None:
            return end
        ends = [0, *(after for _, after in blocks)]
        before = self.begin_before(blocks[cut][0], ends[cut])
        if before > start:
            return before
        whole = min(length, -(-blocks[cut][1] // self.row_tokens) * self.row_tokens)
        if cut + 1 < len(blocks):
            whole = min(whole, self.begin_before(blocks[cut + 1][0], ends[cut + 1]))
        fits = (may_exceed or whole - start <= num_tokens) and self.count_rows(start, whole) <= num_rows
        return whole if fits else start

    def begin_of_row(self, position: int) -> int:
        """Return where the row of a position begins."""
        return position // self.row_tokens * self.row_tokens

    def begin_before(self, first: int, previous: int) -> int:
        """Return up to where a prompt can be computed before a block: its row's begin, or the block's end before it.

        Args:
            first: the block's first position.
            previous: where the block before it ends.
        """
        return max(self.begin_of_row(first), previous)

    def count_rows(self, start: int, end: int) -> int:
        """Return how many rows the positions from `start` to `end` lie in."""
        return -(-end // self.row_tokens) - start // self.row_tokens

    def observe(self, *, num_decodes: int, num_prompt_tokens: int, elapsed_s: float) -> None:
        """Take the time of a step into the means."""
        if num_prompt_tokens == 0:
            self.decode_s = _mean(self.decode_s, elapsed_s)
        elif num_prompt_tokens >= FEWEST_TOKENS:
            beside_s = self.decode_s or 0.0 if num_decodes else 0.0
            prompts_s = max(elapsed_s - beside_s, LEAST_SHARE * elapsed_s)
            self._token_s = _mean(self._token_s, prompts_s / num_prompt_tokens)


def _mean(mean: float | None, latest: float) -> float:
    return latest if mean is None else mean + WEIGHT_OF_LATEST * (latest - mean)
