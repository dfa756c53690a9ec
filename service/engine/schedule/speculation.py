"""The policy that drafts tokens: for which sequences, how many, and whether at all.

A token is a function of logits, seed and position. So a step computes the drafts as if they were known, samples a token
after each of them with that position's randomness, and a draft is accepted if it equals the token that was sampled in
its place. The text is that of no speculation, at any temperature; a wrong draft costs time alone.

What was proposed is compared with what comes, whether it is drafted or not. So a text that nobody foresees is known as
such before anything was drafted for it. A draft model, whose proposals take time, is asked only for what is drafted.
"""

import logging
import time
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import NamedTuple

from service.engine.schedule.proposers import DraftModel, ForcedProposer, NgramProposer, PredictionProposer, Proposer
from service.engine.schedule.sequence import Sequence
from service.engine.schedule.step_costs import StepCosts
from service.engine.shapes import EngineShapes

logger = logging.getLogger(__name__)

WEIGHT_OF_LATEST = 0.2  # in the mean of a sequence's acceptance
LEAST_GAIN = 1.05  # tokens a second with drafts, over those without, below which none are made
LEAST_ACCEPTANCE = 0.25  # of a token, below which no draft can pay
LENGTHS = (1, 3, 7, 15)  # of drafts, of which one is chosen: with the last token they are powers of two
MODEL_ACCEPTANCE = 0.7  # of a draft model's tokens, before any was compared
WEIGHT_OF_TOKEN = 0.01  # in the mean of its acceptance over all sequences, from which a new one's begins
WEIGHT_OF_HOPE = 0.02  # of the first acceptance, for each new sequence: a text may come that the model knows better


@dataclass(slots=True)
class Foresight:
    """What was proposed for a sequence, and how good proposals have been."""

    acceptance: list[float]  # of each proposer, the mean share of tokens that came as proposed
    num_seen: list[int]  # of each proposer, tokens that were compared
    num_compared: int = 0  # tokens of the sequence
    proposal: list[int] = field(default_factory=list)  # for the tokens after those
    proposer: int = 0  # which one it is of


class Step(NamedTuple):
    """A step before anything is drafted for it."""

    num_seqs: int  # that decode
    num_rows: int  # for those of them that have none yet

    @classmethod
    def of(cls, decoding: Items[Sequence], most_rows: int) -> "Step":
        """Return the step that goes on with some sequences: those whose state is behind have a row."""
        return cls(len(decoding), most_rows - sum(sequence.num_behind > 0 for sequence in decoding))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sequence for which tokens may be drafted."""

    sequence: Sequence
    tokens: list[int]
    acceptance: float  # of each token, if those before it are accepted

    def gain(self, length: int) -> float:
        """Return how many of as many drafted tokens are accepted, on average."""
        length, rate = min(length, len(self.tokens)), self.acceptance
        return float(length) if rate >= 1 else rate * (1 - rate**length) / (1 - rate)


class Speculation:
    """Chooses drafts before each step."""

    def __init__(
        self,
        shapes: EngineShapes,
        proposers: Items[Proposer] | None = None,
        *,
        model: DraftModel | None = None,
        is_adaptive: bool = True,
    ) -> None:
        """Know nothing yet.

        Args:
            shapes: the sizes of the engine.
            proposers: those that are asked, in their order; None for those that need no weights.
            model: drafts where these foresee nothing, or less surely; None for no model.
            is_adaptive: whether drafts are made only where they pay; otherwise wherever there are any.
        """
        usual = (ForcedProposer(), PredictionProposer(), NgramProposer())
        self._proposers: tuple[Proposer, ...] = usual if proposers is None else tuple(proposers)
        self._model, self._model_acceptance = model, MODEL_ACCEPTANCE
        self._drafting_s = 0.0  # that the model took since the last step was observed
        self._is_adaptive = is_adaptive
        self._most = shapes.num_drafts
        self._num_samples, self._row_tokens = shapes.num_samples, shapes.row_tokens
        self._most_rows = shapes.row_counts[-1]
        # Of a row behind the drafts: one is for the token after them, which a state reads in one row with them.
        self._left_free = 1 if shapes.states is None else 2
        self._foresight: dict[Sequence, Foresight] = {}
        self._failed: set[int] = set()  # proposers that have raised
        self.costs = StepCosts(shapes.row_counts)
        self.num_drafts = 0  # so far; each of one or more tokens
        self.num_accepted_at = [0] * self._most  # accepted tokens by their place in a draft
        self.num_draft_tokens = 0

    @property
    def num_accepted_tokens(self) -> int:
        """Tokens that were drafted and accepted so far."""
        return sum(self.num_accepted_at)

    def may_draft(self, decoding: Items[Sequence]) -> bool:
        """Return whether drafts would be chosen if the steps in flight were read."""
        found = [self._candidate(sequence) for sequence in decoding]
        step = Step.of(decoding, self._most_rows)
        return bool(self._chosen(found, step) or self._wanted_of_model(decoding, step))

    def choose(
        self, decoding: Items[Sequence], reserve: Callable[[Sequence, int], int] = lambda _, length: length
    ) -> dict[Sequence, tuple[int, ...]]:
        """Return the drafts for a step that goes on with some sequences; of those in flight there are none.

        Args:
            decoding: the sequences.
            reserve: gives a sequence pages for drafts of a length, and returns for how many tokens there are some.
        """
        known, step = [sequence for sequence in decoding if sequence.is_read], Step.of(decoding, self._most_rows)
        if wanted := self._wanted_of_model(known, step):
            self._ask_model({s: room for s, length in wanted.items() if (room := reserve(s, length))})
        return self._chosen([self._candidate(sequence) for sequence in known], step)

    def observe(self, num_seqs: int, num_rows: int, num_tokens: int, elapsed_s: float) -> None:
        """Take the time of a step into the costs, less what a draft model took of it; see `StepCosts.observe`."""
        self.costs.observe(num_seqs, num_rows, num_tokens, max(elapsed_s - self._drafting_s, 0.0))
        self._drafting_s = 0.0

    def count(self, num_drafted: int, num_accepted: int) -> None:
        """Count a draft that was verified."""
        self.num_drafts += 1
        self.num_draft_tokens += num_drafted
        for place in range(num_accepted):
            self.num_accepted_at[place] += 1

    def is_predicted(self, sequence: Sequence) -> bool:
        """Return whether the latest draft of a sequence is of its request's prediction."""
        foresight = self._foresight.get(sequence)
        if foresight is None or foresight.proposer == self._number_of_model:
            return False
        return isinstance(self._proposers[foresight.proposer], PredictionProposer)

    def forget(self, sequence: Sequence) -> None:
        """Drop what is kept of a sequence that has ended."""
        if self._foresight.pop(sequence, None) is not None:
            for proposer in self._proposers:
                proposer.forget(sequence)
            if self._model is not None:
                self._model.forget(sequence)

    @property
    def _number_of_model(self) -> int:
        """The draft model's number among the proposers: the last."""
        return len(self._proposers)

    def _candidate(self, sequence: Sequence) -> Candidate | None:
        """Return what may be drafted for a sequence, after its latest known token."""
        limit = self._limit(sequence)
        if limit < 1:
            return None
        foresight = self._compared(sequence)
        acceptance = foresight.acceptance[foresight.proposer]
        if not foresight.proposal or (self._is_adaptive and acceptance < LEAST_ACCEPTANCE):
            return None
        tokens = _before(foresight.proposal[:limit], sequence.request.stop_ids)
        return Candidate(sequence, tokens, acceptance) if tokens else None

    def _limit(self, sequence: Sequence) -> int:
        """Return how many tokens a step can draft: they lie in one row, and the token after them is sampled too."""
        if sequence.request.sampling.has_penalties:  # each token depends on whether those before were accepted
            return 0
        start = sequence.num_computed
        left_of_row = self._row_tokens - start % self._row_tokens - self._left_free
        return min(self._most, left_of_row, sequence.request.max_tokens - sequence.num_planned - 1)

    def _compared(self, sequence: Sequence) -> Foresight:
        """Compare what was proposed with the tokens that have come since, and propose anew where it ended."""
        foresight = self._foresight.get(sequence)
        if foresight is None:
            rates = [proposer.first_acceptance for proposer in self._proposers]
            self._model_acceptance += WEIGHT_OF_HOPE * (MODEL_ACCEPTANCE - self._model_acceptance)
            rates.append(self._model_acceptance)
            foresight = self._foresight[sequence] = Foresight(rates, [0] * len(rates))
        known, proposal, rates = sequence.known_ids, foresight.proposal, foresight.acceptance
        if foresight.num_compared == len(known):
            return foresight
        came, foresight.num_compared = known[foresight.num_compared :], len(known)
        for place, token_id in enumerate(came):
            if place == len(proposal):
                break
            is_right, number = proposal[place] == token_id, foresight.proposer
            weight = WEIGHT_OF_LATEST
            if number == self._number_of_model:
                self._model_acceptance += WEIGHT_OF_TOKEN * (is_right - self._model_acceptance)
            elif not is_right:
                # A first acceptance is a guess: it is given up with the first tokens that are wrong.
                weight = max(weight, 1 / (2 + foresight.num_seen[number]))
            rates[number] += weight * (is_right - rates[number])
            foresight.num_seen[number] += 1
            if not is_right:
                proposal.clear()
                break
        del proposal[: len(came)]
        if len(proposal) < self._most:
            number, longer = self._propose(sequence)
            if len(longer) > len(proposal):
                foresight.proposer, foresight.proposal = number, longer
        return foresight

    def _propose(self, sequence: Sequence) -> tuple[int, list[int]]:
        """Return what the first proposer proposes that proposes anything, and its number.

        One that fails is asked no more: no answer depends on it.
        """
        for number, proposer in enumerate(self._proposers):
            if number in self._failed:
                continue
            try:
                if proposal := proposer.propose(sequence, self._most):
                    return number, proposal
            except Exception:
                self._failed.add(number)
                facts = {"source": type(proposer).__name__}
                logger.exception("a source of drafts failed and is not used again", extra=facts)
        return 0, []

    def _wanted_of_model(self, decoding: Items[Sequence], step: Step) -> dict[Sequence, int]:
        """Return how many tokens the model is to draft for which sequences; none where that does not pay."""
        if self._model is None:
            return {}
        candidates = []
        for sequence in decoding:
            limit = self._limit(sequence)
            if limit < 1:
                continue
            foresight = self._compared(sequence)
            acceptance = foresight.acceptance[self._number_of_model]
            is_foreseen = bool(foresight.proposal) and foresight.proposer != self._number_of_model
            if is_foreseen and foresight.acceptance[foresight.proposer] >= acceptance:
                continue
            if not self._is_adaptive or acceptance >= LEAST_ACCEPTANCE:
                candidates.append(Candidate(sequence, [0] * limit, acceptance))  # tokens that are not known yet
        candidates.sort(key=lambda c: -c.acceptance)
        lengths = self._lengths(candidates, step, is_by_model=True)
        return {c.sequence: length for c, length in zip(candidates, lengths, strict=False)}

    def _ask_model(self, lengths: dict[Sequence, int]) -> None:
        """Have the model draft for sequences. One that fails is asked no more: no answer depends on it."""
        model, begin_s = self._model, time.perf_counter()
        if model is None:
            return
        try:
            caught_up = model.catch_up(list(lengths))
            drafting_s = time.perf_counter()
            if caught_up:
                drafts = model.draft({sequence: lengths[sequence] for sequence in caught_up})
                elapsed_s, most = time.perf_counter() - drafting_s, max(lengths[sequence] for sequence in caught_up)
                self.costs.observe_model(len(caught_up), most, elapsed_s)
                for sequence, tokens in drafts.items():
                    foresight = self._foresight[sequence]
                    foresight.proposer, foresight.proposal = self._number_of_model, tokens
        except Exception:
            self._model = None
            logger.exception("a source of drafts failed and is not used again", extra={"source": "draft model"})
        self._drafting_s += time.perf_counter() - begin_s

    def _chosen(self, found: Iterable[Candidate | None], step: Step) -> dict[Sequence, tuple[int, ...]]:
        """Return the drafts that bring the most tokens a second; none if no drafts bring as many."""
        candidates = sorted((c for c in found if c is not None), key=lambda c: -c.acceptance)
        lengths = self._lengths(candidates, step)
        return {c.sequence: tuple(c.tokens[:length]) for c, length in zip(candidates, lengths, strict=False)}

    def _lengths(self, candidates: Items[Candidate], step: Step, *, is_by_model: bool = False) -> list[int]:
        """Return how many tokens to draft for each of the first candidates."""
        if not candidates:
            return []
        if not self._is_adaptive:
            # The tokens of a proposal are there; those of a model are shared out evenly.
            share = max((self._num_samples - step.num_seqs) // len(candidates), 1) if is_by_model else self._most
            return self._fitting(candidates, min(share, self._most), step)
        decode_s = self.costs.decode_s(step.num_seqs)
        return [] if decode_s is None else self._best(candidates, step, decode_s, is_by_model=is_by_model)

    def _best(self, candidates: Items[Candidate], step: Step, decode_s: float, *, is_by_model: bool) -> list[int]:
        """Return how many tokens to draft for each of the first candidates to be fastest."""
        num_seqs = step.num_seqs
        best, best_rate = [], LEAST_GAIN * num_seqs / decode_s
        refused: set[tuple[int, int]] = set()
        for longest in (*(n for n in LENGTHS if n < self._most), self._most):
            lengths = self._fitting(candidates, longest, step)
            gain, num_tokens = 0.0, 0
            for count, length in enumerate(lengths, 1):
                gain += candidates[count - 1].gain(length)
                num_tokens += candidates[count - 1].sequence.num_behind + 1 + length
                model_s = self.costs.model_s(count, max(lengths[:count])) if is_by_model else 0.0
                rate = (num_seqs + gain) / (decode_s + model_s + self.costs.more_s(count, num_tokens))
                if rate > best_rate:
                    best, best_rate = lengths[:count], rate
                elif (num_seqs + gain) / decode_s > best_rate:
                    refused.add((count, num_tokens))
        if not best:
            for count, num_tokens in refused:
                self.costs.doubt(count, num_tokens)
        return best

    def _fitting(self, candidates: Items[Candidate], longest: int, step: Step) -> list[int]:
        """Return how many tokens of each of the first candidates a step can verify, if it drafts at most so many."""
        left, rows_left = self._num_samples - step.num_seqs, step.num_rows
        lengths: list[int] = []
        for candidate in candidates:
            length, needs_row = min(longest, len(candidate.tokens), left), candidate.sequence.num_behind == 0
            if length == 0 or rows_left < needs_row:
                break
            lengths.append(length)
            left -= length
            rows_left -= needs_row
        return lengths


def _before(token_ids: list[int], stop_ids: frozenset[int]) -> list[int]:
    """Return the tokens before the first that ends the sequence: it is sampled after the one before it anyway."""
    end = next((place for place, token_id in enumerate(token_ids) if token_id in stop_ids), len(token_ids))
    return token_ids[:end]
