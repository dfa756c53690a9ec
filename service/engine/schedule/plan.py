"""The sequences of one device step, as the scheduler chose them."""

from dataclasses import dataclass
from typing import NamedTuple

from service.engine.schedule.adapter_slots import AdapterWrite
from service.engine.schedule.memory import EncoderPart
from service.engine.schedule.sequence import Sequence
from service.engine.shapes import StepKind


class PlannedRows(NamedTuple):
    """Rows that take the places of tokens of a step."""

    start: int  # position of the medium's first row
    end: int  # position after its last row
    places: tuple[int, ...]  # of the rows
    line: int | None = None  # rows between two tokens that are text; None for rows without any


class PlannedState(NamedTuple):
    """The slots of the state of a sequence in a step."""

    reads: int  # before its first token; NO_STATE for zeros
    writes: tuple[tuple[int, int], ...]  # positions at which the state is kept, in their order, each with its slot


class PlannedSequence(NamedTuple):
    """One sequence's part of a step."""

    sequence: Sequence
    slot: int  # a copy, because the sequence may have lost its slot when the step is read
    start: int  # position of its first token
    # Of a prompt, or those that are read again, the last one and its drafts; empty for a sequence that decodes, whose
    # token is on the device.
    token_ids: tuple[int, ...]
    is_sampled: bool  # whether the sampled token counts: not after a prompt's earlier chunks
    rows: tuple[PlannedRows, ...] = ()  # of the media that its tokens touch
    state: PlannedState | None = None  # of a model whose layers keep states
    drafts: tuple[int, ...] = ()  # the last of its tokens, of a sequence that decodes
    num_again: int = 0  # the first of its tokens, of a sequence that decodes: those that its state has not read

    @property
    def is_prompt(self) -> bool:
        """Whether it computes a part of a prompt."""
        return bool(self.token_ids) and not self.drafts and not self.num_again

    @property
    def num_samples(self) -> int:
        """Tokens that the step samples for the sequence, including one that does not count."""
        return 1 + len(self.drafts)

    @property
    def first_sampled(self) -> int:
        """The position of the first token that the step samples for it."""
        return self.start + self.num_tokens - len(self.drafts)

    @property
    def num_tokens(self) -> int:
        """Tokens of the sequence in this step."""
        return len(self.token_ids) or 1


@dataclass(frozen=True, slots=True)
class Plan:
    """The sequences of the next step: those that decode, then prompts; or instead a part of an encoding."""

    seqs: tuple[PlannedSequence, ...]
    part: EncoderPart | None = None
    writes: tuple[AdapterWrite, ...] = ()  # before the step

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of prompts."""
        return sum(len(planned.token_ids) for planned in self.seqs if planned.is_prompt)

    @property
    def num_drafts(self) -> int:
        """Tokens that were drafted."""
        return sum(len(planned.drafts) for planned in self.seqs)

    @property
    def num_decodes(self) -> int:
        """Sequences that decode."""
        return sum(not planned.is_prompt for planned in self.seqs)

    @property
    def kind(self) -> StepKind:
        """What the step computes."""
        if self.part is not None:
            return StepKind.ENCODE
        if self.num_decodes == 0:
            return StepKind.PREFILL
        if self.num_prompt_tokens:
            return StepKind.MIXED
        return StepKind.VERIFY if any(planned.token_ids for planned in self.seqs) else StepKind.DECODE
