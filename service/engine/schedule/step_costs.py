"""Running means of step times: of steps that decode, and of what a step that verifies drafts takes longer.

Plain numbers. What a draft costs depends on the machine, on the model and on how many sequences decode: on a CPU the
products of eight tokens take up to twice as long as those of one, on an accelerator hardly longer.
"""

from collections.abc import Sequence

WEIGHT_OF_LATEST = 0.2  # in the running means
# What a cost that was measured too high shrinks by, each time that nothing is drafted because of it.
DOUBT = 0.998


class StepCosts:
    """Running means of the time between two steps."""

    def __init__(self, row_counts: Sequence[int]) -> None:
        """Know nothing yet.

        Args:
            row_counts: how many rows steps have room for.
        """
        self._row_counts = row_counts
        self._decode_s: dict[int, float] = {}  # by the number of sequences
        self._more_s: dict[tuple[int, int], float] = {}  # by room for rows and tokens in them, as a power of two
        self._model_s: dict[
            int, float
        ] = {}  # of a draft model for a token, by the number of sequences as a power of two

    def observe(self, num_seqs: int, num_rows: int, num_tokens: int, elapsed_s: float) -> None:
        """Take the time of a step without prompts.

        Args:
            num_seqs: that the step goes on with.
            num_rows: of those with drafts.
            num_tokens: in these rows.
            elapsed_s: since the step before it was read.
        """
        if num_rows == 0:
            self._decode_s[num_seqs] = _mean(self._decode_s.get(num_seqs), elapsed_s)
        elif (decode_s := self.decode_s(num_seqs)) is not None:
            key = self._key(num_rows, num_tokens)
            self._more_s[key] = _mean(self._more_s.get(key), max(elapsed_s - decode_s, 0.0))

    def decode_s(self, num_seqs: int) -> float | None:
        """Return how long a step takes without drafts; None before there was one."""
        if not self._decode_s:
            return None
        return self._decode_s[min(self._decode_s, key=lambda known: abs(known - num_seqs))]

    def more_s(self, num_rows: int, num_tokens: int) -> float:
        """Return how much longer a step takes with rows of drafts; what was never measured is tried.

        So a single step that was slow by chance ends no drafts of other lengths.
        """
        return self._more_s.get(self._key(num_rows, num_tokens), 0.0)

    def observe_model(self, num_seqs: int, length: int, elapsed_s: float) -> None:
        """Take the time in which a draft model drafted at most `length` tokens for each of some sequences."""
        key = num_seqs.bit_length()
        self._model_s[key] = _mean(self._model_s.get(key), elapsed_s / length)

    def model_s(self, num_seqs: int, length: int) -> float:
        """Return how long a draft model drafts at most `length` tokens for each; what was never measured is tried."""
        return self._model_s.get(num_seqs.bit_length(), 0.0) * length

    def doubt(self, num_rows: int, num_tokens: int) -> None:
        """Let a cost that keeps a draft from being made be measured again some day."""
        key = self._key(num_rows, num_tokens)
        if key in self._more_s:
            self._more_s[key] *= DOUBT
        if num_rows.bit_length() in self._model_s:
            self._model_s[num_rows.bit_length()] *= DOUBT

    def _key(self, num_rows: int, num_tokens: int) -> tuple[int, int]:
        room = next((count for count in self._row_counts if count >= num_rows), self._row_counts[-1])
        return room, (num_tokens - 1).bit_length()


def _mean(mean: float | None, latest: float) -> float:
    return latest if mean is None else mean + WEIGHT_OF_LATEST * (latest - mean)
