"""Proposers: what may come next in a sequence. They need no weights."""

from typing import Protocol, override, runtime_checkable

from service.engine.schedule.ngrams import NgramIndex, continued
from service.engine.schedule.sequence import Sequence


@runtime_checkable
class Proposer(Protocol):
    """A source of drafts. A draft need not be right: the model verifies it."""

    # How likely its first token is right, before that was seen of a sequence.
    first_acceptance: float

    def propose(self, sequence: Sequence, limit: int) -> list[int]:
        """Return tokens that may follow those that are known of a sequence, the next one first; often none.

        Args:
            sequence: one that decodes, all of whose tokens are known.
            limit: the most tokens to return, at least one.
        """
        ...

    def forget(self, sequence: Sequence) -> None:
        """Drop what is kept of a sequence that has ended."""
        ...


class NgramProposer(Proposer):
    """Proposes what followed when the latest tokens occurred before in the prompt or the answer."""

    first_acceptance = 0.2  # an n-gram that occurs again says little before some tokens have followed as foreseen

    def __init__(self) -> None:
        self._indexes: dict[Sequence, NgramIndex] = {}

    @override
    def propose(self, sequence: Sequence, limit: int) -> list[int]:
        """See `Proposer`."""
        index = self._indexes.get(sequence)
        if index is None:
            max_len = sequence.prompt_len + sequence.request.max_tokens
            index = self._indexes[sequence] = NgramIndex(sequence.known_ids, max_len)
        index.extend()
        position = index.find(sequence.known_ids)
        return [] if position is None else continued(sequence.known_ids, position, limit)

    @override
    def forget(self, sequence: Sequence) -> None:
        """See `Proposer`."""
        self._indexes.pop(sequence, None)
