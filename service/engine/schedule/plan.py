"""What the scheduler tells the device side: who runs in the next step, and which pages to copy before it."""

from dataclasses import dataclass
from enum import StrEnum

from service.engine.schedule.sequence import Sequence


class StepKind(StrEnum):
    """The two kinds of step."""

    PREFILL = "prefill"  # chunks of a few prompts
    DECODE = "decode"  # one token of each running sequence


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """One sequence's part of a step."""

    sequence: Sequence
    slot: int  # the sequence may have lost it when the step is read
    start: int  # position of its first token
    token_ids: tuple[int, ...]  # a prefill's tokens; empty in a decode, whose token is still on the device
    is_sampled: bool  # whether the token that comes out counts: not after a prompt's earlier chunks

    @property
    def num_tokens(self) -> int:
        """Tokens of the row in this step."""
        return len(self.token_ids) or 1


@dataclass(frozen=True, slots=True)
class Plan:
    """Who runs in the next step."""

    kind: StepKind
    rows: tuple[PlannedRow, ...]


class CopyKind(StrEnum):
    """The two ways between a slot's row and the pages, for kernels that keep rows."""

    SAVE = "save"  # row to pages: others may find them
    RESTORE = "restore"  # pages to row: a prefix that was found


@dataclass(frozen=True, slots=True)
class PageCopy:
    """Some neighbouring pages of one sequence."""

    kind: CopyKind
    slot: int
    first_page: int  # in the order of positions
    pages: tuple[int, ...]
