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


@dataclass(frozen=True, slots=True)
class PlannedSequence:
    """One sequence's part of a step."""

    sequence: Sequence
    slot: int  # a copy, because the sequence may have lost its slot when the step is read
    start: int  # position of its first token
    token_ids: tuple[int, ...]  # of a prompt; empty for a sequence that decodes, whose token is still on the device
    is_sampled: bool  # whether the sampled token counts: not after a prompt's earlier chunks
    rows: tuple[PlannedRows, ...] = ()  # of the media that its tokens touch
    state: PlannedState | None = None  # of a model whose layers keep states

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
        return sum(len(planned.token_ids) for planned in self.seqs)

    @property
    def num_decodes(self) -> int:
        """Sequences that decode."""
        return sum(not planned.token_ids for planned in self.seqs)

    @property
    def kind(self) -> StepKind:
        """What the step computes."""
        if self.part is not None:
            return StepKind.ENCODE
        if self.num_decodes == 0:
            return StepKind.PREFILL
        return StepKind.MIXED if self.num_prompt_tokens else StepKind.DECODE
