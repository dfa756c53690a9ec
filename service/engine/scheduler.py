"""Token ids in, token ids out: the scheduler.

Decides, before every device step, which sequences run and with how many tokens. Pure Python: it sees lengths and page
counts, never arrays, so every question of policy is answerable in a unit test.

A plan is made before the previous step's tokens are read. So a sequence that ended in that step may run once more; what
comes of it is dropped at `commit`. Its slot and pages are free at once all the same: device steps run in order, so a
later owner writes after that last stray write and reads only positions that it wrote itself.
"""

from collections import deque
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from enum import StrEnum
from heapq import heappop, heappush

from service.engine.pages import PagePool
from service.engine.request import FinishReason, Request, StepLogprobs, TokenEvent, TokenLogprobs
from service.engine.sequence import Sequence


class StepKind(StrEnum):
    """The two kinds of step."""

    PREFILL = "prefill"  # a chunk of one prompt
    DECODE = "decode"  # one token of each running sequence


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """One sequence's part of a step."""

    sequence: Sequence
    start: int  # position of its first token
    token_ids: tuple[int, ...]  # a prefill's tokens; empty in a decode, whose token is still on the device
    is_sampled: bool  # whether the token that comes out counts: not after a prompt's earlier chunks


@dataclass(frozen=True, slots=True)
class Plan:
    """Who runs in the next step."""

    kind: StepKind
    rows: tuple[PlannedRow, ...]


class Scheduler:
    """Owns every sequence from its arrival to its end."""

    def __init__(self, *, num_slots: int, num_pages: int, page_size: int, max_prefill_tokens: int) -> None:
        self.pages = PagePool(num_pages)
        self._page_size = page_size
        self._max_prefill_tokens = max_prefill_tokens
        self._free_slots = list(range(num_slots))  # a heap
        self._waiting: deque[Sequence] = deque()
        self._running: list[Sequence] = []  # in the order of admission
        self._last_kind = StepKind.DECODE

    @property
    def num_waiting(self) -> int:
        """Sequences without a slot."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Sequences with a slot."""
        return len(self._running)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to plan."""
        return not self._waiting and not self._running

    def add(self, request: Request) -> Sequence:
        """Take a request; it waits for a slot and for pages."""
        sequence = Sequence(request)
        assert self._pages_needed(sequence) <= self.pages.num_pages, "the facade admits only what can fit"
        self._waiting.append(sequence)
        return sequence

    def abort(self, sequence: Sequence) -> None:
        """End a sequence now, whatever it is doing; nothing more is reported of it."""
        if not sequence.is_finished:
            self._finish(sequence, FinishReason.ABORT)

    def plan(self) -> Plan | None:
        """Choose the next step: chunks of prompts and decode steps take turns, so that neither waits long."""
        self._admit()
        prefilling = next((s for s in self._running if s.is_prefilling), None)
        decoding = [s for s in self._running if s.can_decode]
        if prefilling is not None and (self._last_kind is StepKind.DECODE or not decoding):
            plan = Plan(StepKind.PREFILL, (self._plan_chunk(prefilling),))
        elif decoding:
            plan = Plan(StepKind.DECODE, tuple(self._plan_token(s) for s in decoding))
        else:
            return None
        self._last_kind = plan.kind
        return plan

    def commit(
        self, plan: Plan, token_ids: Rows[int], logprobs: StepLogprobs | None = None
    ) -> list[tuple[Sequence, TokenEvent]]:
        """Take the tokens that a step brought, one per row, and return what is to be told to whom.

        A negative token id says that the row's scores are no numbers: it ends that sequence alone.
        """
        events = []
        for index, (row, token_id) in enumerate(zip(plan.rows, token_ids, strict=True)):
            if logprobs is not None and logprobs.prompts[index]:
                row.sequence.keep_prompt_logprobs(row.start, logprobs.prompts[index])
            if row.is_sampled and not row.sequence.is_finished:
                token_logprobs = None if logprobs is None else logprobs.tokens[index]
                events.append((row.sequence, self._commit_token(row.sequence, token_id, token_logprobs)))
        return events

    def check_integrity(self) -> None:
        """Check that no page and no slot was lost.

        Raises:
            PageIntegrityError: a page was.
        """
        self.pages.check_integrity([s.pages for s in self._running])
        slots = [*self._free_slots, *(s.slot for s in self._running)]
        assert len(set(slots)) == len(slots), f"slots {sorted(slots)} have a double"

    def _admit(self) -> None:
        # A sequence gets all the pages that it can ever need, so that none runs out of them half-way.
        while self._waiting and self._free_slots and self.pages.can_allocate(self._pages_needed(self._waiting[0])):
            sequence = self._waiting.popleft()
            # The lowest slot that is free: decode steps are cut at the highest one in use.
            sequence.slot = heappop(self._free_slots)
            sequence.pages = self.pages.allocate(self._pages_needed(sequence))
            self._running.append(sequence)

    def _plan_chunk(self, sequence: Sequence) -> PlannedRow:
        start = sequence.num_cached
        chunk = sequence.request.prompt_ids[start : start + self._max_prefill_tokens]
        sequence.num_cached += len(chunk)
        is_last = not sequence.is_prefilling
        sequence.num_planned += is_last
        return PlannedRow(sequence, start, chunk, is_sampled=is_last)

    def _plan_token(self, sequence: Sequence) -> PlannedRow:
        row = PlannedRow(sequence, sequence.num_cached, (), is_sampled=True)
        sequence.num_cached += 1
        sequence.num_planned += 1
        return row

    def _commit_token(self, sequence: Sequence, token_id: int, logprobs: TokenLogprobs | None) -> TokenEvent:
        if token_id < 0:
            self._finish(sequence, FinishReason.ERROR)
            return TokenEvent((), FinishReason.ERROR)
        of_prompt = () if sequence.output_ids else tuple(sequence.prompt_logprobs)
        if token_id in sequence.request.stop_ids:
            self._finish(sequence, FinishReason.STOP)
            return TokenEvent((), FinishReason.STOP, prompt_logprobs=of_prompt)
        sequence.output_ids.append(token_id)
        if len(sequence.output_ids) == sequence.request.max_tokens:
            self._finish(sequence, FinishReason.LENGTH)
        of_token = () if logprobs is None else (logprobs,)
        return TokenEvent((token_id,), sequence.finish_reason, of_token, of_prompt)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        sequence.finish_reason = reason
        if sequence.slot < 0:
            self._waiting.remove(sequence)
            return
        self._running.remove(sequence)
        heappush(self._free_slots, sequence.slot)
        self.pages.free(sequence.pages)
        sequence.pages = []

    def _pages_needed(self, sequence: Sequence) -> int:
        return -(-sequence.max_positions // self._page_size)
