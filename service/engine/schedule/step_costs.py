"""Medians of the latest step times: of steps that decode, and of what a step that verifies drafts takes longer.

Plain numbers. What a draft costs depends on the machine, on the model and on how many sequences decode: on a CPU the
products of eight tokens take up to twice as long as those of one, on an accelerator hardly longer. Beside other
processes a step may take ten times as long as usual, and none is faster by chance.
"""

import statistics
from collections import defaultdict, deque
from collections.abc import Sequence

NUM_LATEST = 5  # times, of which the lower median counts
# What a cost shrinks by, each time that nothing is drafted because of it: half as much after each measurement.
FIRST_DOUBT, LEAST_DOUBT = 0.1, 0.002


class Cost:
    """How long something takes, as far as it is known."""

    def __init__(self) -> None:
        """Know nothing yet."""
        self._latest_s: deque[float] = deque(maxlen=NUM_LATEST)
        self._doubt = FIRST_DOUBT
        self.value_s = 0.0

    def observe(self, elapsed_s: float) -> None:
        """Take a measured time."""
        if self._latest_s:
            self._doubt = max(self._doubt / 2, LEAST_DOUBT)
        self._latest_s.append(elapsed_s)
        self.value_s = statistics.median_low(self._latest_s)

    def doubt(self) -> None:
        """Take it for shorter, so that it is measured again some day: soon if it was measured once."""
        self.value_s *= 1 - self._doubt


class StepCosts:
    """What is known of the time between two steps."""

    def __init__(self, row_counts: Sequence[int]) -> None:
        """Know nothing yet.

        Args:
            row_counts: how many rows steps have room for.
        """
        self._row_counts = row_counts
        self._decode: dict[int, Cost] = defaultdict(Cost)  # by the number of sequences
        self._more: dict[tuple[int, int], Cost] = defaultdict(Cost)  # by room for rows and tokens, as a power of two
        # Of a draft model for a token, by the number of sequences as a power of two.
        self._model: dict[int, Cost] = defaultdict(Cost)

    def observe(self, num_seqs: int, num_rows: int, num_tokens: int, elapsed_s: float) -> None:
        """Take the time of a step without prompts.

        Args:
            num_seqs: that the step goes on with.
            num_rows: of those with drafts.
            num_tokens: in these rows.
            elapsed_s: since the step before it was read.
        """
        if num_rows == 0:
            self._decode[num_seqs].observe(elapsed_s)
        elif (decode_s := self.decode_s(num_seqs)) is not None:
            self._more[self._key(num_rows, num_tokens)].observe(max(elapsed_s - decode_s, 0.0))

    def decode_s(self, num_seqs: int) -> float | None:
        """Return how long a step takes without drafts; None before there was one."""
        if not self._decode:
            return None
        return self._decode[min(self._decode, key=lambda known: abs(known - num_seqs))].value_s

    def more_s(self, num_rows: int, num_tokens: int) -> float:
        """Return how much longer a step takes with rows of drafts; what was never measured is tried.

        So a single step that was slow by chance ends no drafts of other lengths.
        """
        key = self._key(num_rows, num_tokens)
        return self._more[key].value_s if key in self._more else 0.0

    def observe_model(self, num_seqs: int, length: int, elapsed_s: float) -> None:
        """Take the time in which a draft model drafted at most `length` tokens for each of some sequences."""
        self._model[num_seqs.bit_length()].observe(elapsed_s / length)

    def model_s(self, num_seqs: int, length: int) -> float:
        """Return how long a draft model drafts at most `length` tokens for each; what was never measured is tried."""
        key = num_seqs.bit_length()
        return self._model[key].value_s * length if key in self._model else 0.0

    def doubt(self, num_rows: int, num_tokens: int) -> None:
        """Let a cost that keeps a draft from being made be measured again some day."""
        if (key := self._key(num_rows, num_tokens)) in self._more:
            self._more[key].doubt()
        if (of_model := num_rows.bit_length()) in self._model:
            self._model[of_model].doubt()

    def _key(self, num_rows: int, num_tokens: int) -> tuple[int, int]:
        room = next((count for count in self._row_counts if count >= num_rows), self._row_counts[-1])
        return room, (num_tokens - 1).bit_length()
