"""Proposers: what may come next in a sequence. All but a draft model need no weights."""

from collections.abc import Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Protocol, override, runtime_checkable

from service.engine.schedule.ngrams import NgramIndex, continued
from service.engine.schedule.sequence import Sequence

# Tokens of an answer by which its place in a prediction is found again, and how far behind the last known place.
FEWEST_FOUND, FARTHEST = 3, 512


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


@runtime_checkable
class DraftModel(Protocol):
    """A model that drafts for several sequences at once. Its steps take time, and what it drafts need not be right."""

    def catch_up(self, sequences: Items[Sequence]) -> list[Sequence]:
        """Compute what the model has not seen of sequences, as much as one step can, and return those it has caught up.

        Args:
            sequences: those that decode, all of whose tokens are known.
        """
        ...

    def draft(self, lengths: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        """Return tokens that may follow those that are known of sequences, as many as are asked for or fewer.

        Args:
            lengths: of sequences that the model has caught up with and that hold the pages of so many positions more.
        """
        ...

    def forget(self, sequence: Sequence) -> None:
        """Drop what is kept of a sequence that has ended and still holds its pages."""
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


class ForcedProposer(Proposer):
    """Proposes the tokens that a sequence's constraint leaves no choice about."""

    first_acceptance = 0.9

    @override
    def propose(self, sequence: Sequence, limit: int) -> list[int]:
        """See `Proposer`."""
        constraint = sequence.request.constraint
        if constraint is None or sequence.failure is not None or constraint.is_free:
            return []
        return constraint.forced_tokens()[:limit]

    @override
    def forget(self, sequence: Sequence) -> None:
        """See `Proposer`."""


@dataclass(slots=True)
class Followed:
    """How far an answer has come in a prediction."""

    token_ids: list[int]
    index: NgramIndex
    place: int = 0  # of the token that is expected next
    num_output: int = 0  # tokens of the answer that were compared
    is_lost: bool = False  # whether the latest tokens are none of the prediction's


class PredictionProposer(Proposer):
    """Proposes what a client predicts of an answer, from where the answer has come to in it.

    Where the answer differs, it is found again by its latest tokens: a little further on, or else anywhere.
    """

    first_acceptance = 0.8

    def __init__(self) -> None:
        self._followed: dict[Sequence, Followed] = {}

    @override
    def propose(self, sequence: Sequence, limit: int) -> list[int]:
        """See `Proposer`."""
        if not sequence.request.prediction:
            return []
        followed = self._followed.get(sequence)
        if followed is None:
            token_ids = list(sequence.request.prediction)
            followed = self._followed[sequence] = Followed(token_ids, NgramIndex(token_ids, len(token_ids)))
            followed.index.extend()
        self._follow(followed, sequence.output_ids)
        return [] if followed.is_lost else followed.token_ids[followed.place : followed.place + limit]

    @override
    def forget(self, sequence: Sequence) -> None:
        """See `Proposer`."""
        self._followed.pop(sequence, None)

    def _follow(self, followed: Followed, output: list[int]) -> None:
        token_ids = followed.token_ids
        for token_id in output[followed.num_output :]:
            is_expected = followed.place < len(token_ids) and token_ids[followed.place] == token_id
            if followed.is_lost or not is_expected:
                followed.is_lost = True
                break
            followed.place += 1
        followed.num_output = len(output)
        if not followed.is_lost:
            return
        latest, begin = output[-FEWEST_FOUND:], followed.place
        if len(latest) < FEWEST_FOUND:
            return
        for place in range(begin + FEWEST_FOUND, min(begin + FARTHEST, len(token_ids)) + 1):
            if token_ids[place - FEWEST_FOUND : place] == latest:
                break
        else:
            place = followed.index.find(output)
        if place is not None:
            followed.place, followed.is_lost = place, False
