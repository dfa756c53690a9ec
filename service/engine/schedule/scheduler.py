"""Token ids in, token ids out: the scheduler.

Decides, before every device step, which sequences run and with how many tokens. Pure Python: it sees lengths and page
counts, never arrays, so every question of policy is answerable in a unit test.

A plan is made before the previous step's tokens are read. So a sequence that ended in that step may run once more; what
comes of it is dropped at `commit`. Its slot and pages are free at once all the same: device steps run in order, so a
later owner writes after that last stray write and reads only positions that it wrote itself.

Pages are taken as a sequence grows. Out of pages is no error: whoever ranks lowest gives its pages back, waits, and
goes on later from all that it had, its own output included, with the same text.
"""

from bisect import insort
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Rows
from heapq import heappop, heappush

from service.engine.request import FinishReason, Request, StepLogprobs, TokenEvent, TokenLogprobs
from service.engine.schedule.chunking import Chunking
from service.engine.schedule.pages import PagePool
from service.engine.schedule.plan import CopyKind, PageCopy, Plan, PlannedRow, StepKind
from service.engine.schedule.prefix_key import extend_keys, root_key
from service.engine.schedule.sequence import Sequence
from service.engine.token_mask import words_allowing


class Scheduler:
    """Owns every sequence from its arrival to its end."""

    def __init__(self, *, num_slots: int, num_pages: int, page_size: int, chunking: Chunking) -> None:
        self.pages = PagePool(num_pages)
        self.num_preemptions = 0
        self._page_size = page_size
        self._chunking = chunking
        self._free_slots = list(range(num_slots))  # a heap
        self._waiting: list[Sequence] = []  # best rank first
        self._running: list[Sequence] = []  # in the order of admission
        self._turn_cost = 0  # of the prefill steps since the last decode step, in tokens
        self._num_arrived = self._num_chunks = 0
        self._copies: list[PageCopy] = []  # before the next step
        self._copies_after: list[PageCopy] = []  # of what the step being planned brings: before the one after it

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
        sequence = Sequence(request, self._num_arrived, root_key(request.cache_salt))
        if request.sampling.allowed_ids is not None:
            sequence.allowed_words = words_allowing(request.sampling.allowed_ids)
        assert self._pages_for(sequence.max_positions) <= self.pages.num_pages, "the facade admits only what can fit"
        self._num_arrived += 1
        self._wait(sequence)
        return sequence

    def abort(self, sequence: Sequence) -> None:
        """End a sequence now, whatever it is doing; nothing more is reported of it."""
        if not sequence.is_finished:
            self._finish(sequence, FinishReason.ABORT)

    def plan(self, only: StepKind | None = None) -> Plan | None:
        """Choose the next step: chunks of prompts and decode steps take turns, so that neither waits long.

        A turn of prefill is as many steps as cost no more than one full chunk, so that short prompts that came together
        get their first tokens together.

        Args:
            only: the kind that it must be, for who measures one kind by itself.
        """
        self._copies += self._copies_after
        self._copies_after = []
        self._admit()
        ends = {} if only is StepKind.DECODE else self._cut_prefill()
        cost = self._chunking.cost(end - s.num_cached for s, end in ends.items()) if ends else 0
        is_turn_over = self._turn_cost + cost > self._chunking.cost_of_a_turn
        may_decode = only is not StepKind.PREFILL
        if may_decode and is_turn_over and (rows := self._plan_decode()):
            self._turn_cost = 0
            return Plan(StepKind.DECODE, rows)
        if rows := self._plan_prefill(ends):
            self._turn_cost = cost if is_turn_over else self._turn_cost + cost
            return Plan(StepKind.PREFILL, rows)
        self._turn_cost = 0
        rows = self._plan_decode() if may_decode else ()
        return Plan(StepKind.DECODE, rows) if rows else None

    def take_copies(self) -> list[PageCopy]:
        """Hand over the copies that must run before the step that was just planned."""
        copies, self._copies = self._copies, []
        return copies

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
        self.pages.check_integrity([s.pages for s in (*self._running, *self._waiting)])
        slots = [*self._free_slots, *(s.slot for s in self._running)]
        assert len(set(slots)) == len(slots), f"slots {sorted(slots)} have a double"

    def _wait(self, sequence: Sequence) -> None:
        insort(self._waiting, sequence, key=lambda s: s.rank)

    def _admit(self) -> None:
        while self._waiting and self._free_slots:
            sequence = self._waiting[0]
            # Not before its prefill fits beside those under way: it would take pages only to give them back again.
            under_way = sum(self._pages_for(s.prefill_len) - len(s.pages) for s in self._running if s.is_prefilling)
            if not self.pages.can_allocate(under_way + self._pages_for(len(sequence.known_ids))):
                return
            del self._waiting[0]
            # The lowest slot that is free: decode steps are cut at the highest one in use.
            sequence.slot = heappop(self._free_slots)
            sequence.prefill_len = len(sequence.known_ids)
            sequence.num_planned = len(sequence.output_ids)
            self._running.append(sequence)

    def _cut_prefill(self) -> Mapping[Sequence, int]:
        """Cut a step among those whose turn it is, so that a long prompt does not hold up short ones.

        Returns:
            up to which position each is to be computed.
        """
        candidates = sorted(
            (s for s in self._running if s.is_prefilling),
            key=lambda s: (s.request.priority, s.last_prefill_turn, s.arrival),
        )
        chunking = self._chunking
        candidates = self._without_repeated_work(candidates[: chunking.rows[-1]])
        if not candidates:
            return {}
        lengths = [s.prefill_len - s.num_cached for s in candidates]
        num_rows = chunking.choose_rows(lengths)
        if num_rows == 1:
            return {
                s: s.num_cached + chunking.first_chunk(length)
                for s, length in zip(candidates[:1], lengths[:1], strict=True)
            }
        return {s: min(s.num_cached + chunking.width(num_rows), s.prefill_len) for s in candidates[:num_rows]}

    def _without_repeated_work(self, candidates: Iterable[Sequence]) -> list[Sequence]:
        """Find what each has in common with those before; who would compute the same page waits until it is there."""
        page_keys: set[bytes] = set()
        different = []
        for sequence in candidates:
            self._find_prefix(sequence)
            key = next(iter(sequence.page_keys[sequence.num_cached // self._page_size :]), None)
            if key is None or key not in page_keys:
                different.append(sequence)
            if key is not None:
                page_keys.add(key)
        return different

    def _plan_prefill(self, ends: Mapping[Sequence, int]) -> tuple[PlannedRow, ...]:
        self._grow_all(ends)
        return tuple(self._plan_chunk(s, end) for s, end in ends.items() if s.is_running)

    def _plan_decode(self) -> tuple[PlannedRow, ...]:
        decoding = sorted((s for s in self._running if s.can_decode), key=lambda s: s.rank)
        self._grow_all({s: s.num_cached + 1 for s in decoding})
        return tuple(self._plan_token(s) for s in decoding if s.is_running)

    def _plan_token(self, sequence: Sequence) -> PlannedRow:
        row = PlannedRow(sequence, sequence.slot, sequence.num_cached, (), is_sampled=True)
        sequence.num_cached += 1
        sequence.num_planned += 1
        return row

    def _plan_chunk(self, sequence: Sequence, end: int) -> PlannedRow:
        start = sequence.num_cached
        sequence.num_cached = end
        sequence.last_prefill_turn = self._num_chunks = self._num_chunks + 1
        is_last = not sequence.is_prefilling
        sequence.num_planned += is_last
        self._remember(sequence, end)
        return PlannedRow(sequence, sequence.slot, start, sequence.known_ids[start:end], is_sampled=is_last)

    def _find_prefix(self, sequence: Sequence) -> None:
        """Take over the pages that hold the beginning already; at least one token is left to compute."""
        if sequence.num_cached > 0 or sequence.pages:
            return
        if sequence.request.num_prompt_logprobs is not None and not sequence.output_ids:
            return  # a position that is found has no scores
        known = sequence.known_ids
        extend_keys(sequence.page_keys, sequence.root_key, known, self._page_size)
        found = self.pages.find(sequence.page_keys[: (len(known) - 1) // self._page_size])
        self.pages.share(found)
        sequence.pages = found
        sequence.num_cached = len(found) * self._page_size
        sequence.num_remembered = len(found)
        if not sequence.output_ids:
            sequence.num_found = sequence.num_cached
        if found:
            self._copies.append(PageCopy(CopyKind.RESTORE, sequence.slot, 0, tuple(found)))

    def _remember(self, sequence: Sequence, num_positions: int) -> None:
        """Let others find the whole pages among the first `num_positions`, whose tokens are known."""
        extend_keys(sequence.page_keys, sequence.root_key, sequence.known_ids, self._page_size)
        last = num_positions // self._page_size
        fresh = []
        for index in range(sequence.num_remembered, last):
            if self.pages.remember(sequence.pages[index], sequence.page_keys[index]):
                fresh.append(index)
        sequence.num_remembered = max(sequence.num_remembered, last)
        if fresh:
            pages = tuple(sequence.pages[index] for index in range(fresh[0], fresh[-1] + 1))
            self._copies_after.append(PageCopy(CopyKind.SAVE, sequence.slot, fresh[0], pages))

    def _grow_all(self, num_positions: Mapping[Sequence, int]) -> None:
        """Give each sequence the pages for so many positions, if need be those of others; some may lose theirs."""
        for sequence, needed in num_positions.items():
            if sequence.is_running:
                self._grow(sequence, self._pages_for(needed) - len(sequence.pages))

    def _grow(self, sequence: Sequence, num_pages: int) -> None:
        while not self.pages.can_allocate(max(num_pages, 0)):
            victim = max(self._running, key=lambda s: s.rank)
            self._preempt(victim)
            if victim is sequence:
                return
        if num_pages > 0:
            sequence.pages += self.pages.allocate(num_pages)

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        self._give_back(sequence)
        sequence.num_cached = sequence.prefill_len = sequence.num_remembered = 0
        self._wait(sequence)

    def _give_back(self, sequence: Sequence) -> None:
        """Take slot and pages from a running sequence; whole pages whose tokens are known stay findable."""
        if sequence.finish_reason is FinishReason.ERROR:  # whoever found its pages might fail as it did
            self.pages.forget(sequence.pages)
        else:
            self._remember(sequence, min(sequence.num_cached, len(sequence.known_ids)))
        self._running.remove(sequence)
        heappush(self._free_slots, sequence.slot)
        self.pages.release(sequence.pages)
        sequence.pages = []
        sequence.slot = -1

    def _commit_token(self, sequence: Sequence, token_id: int, logprobs: TokenLogprobs | None) -> TokenEvent:
        if token_id < 0:
            self._finish(sequence, FinishReason.ERROR)
            return TokenEvent((), FinishReason.ERROR)
        is_first = not sequence.output_ids
        num_found = sequence.num_found if is_first else 0
        of_prompt = tuple(sequence.prompt_logprobs) if is_first else ()
        if token_id in sequence.request.stop_ids:
            self._finish(sequence, FinishReason.STOP)
            return TokenEvent((), FinishReason.STOP, num_found, prompt_logprobs=of_prompt)
        sequence.output_ids.append(token_id)
        if len(sequence.output_ids) == sequence.request.max_tokens:
            self._finish(sequence, FinishReason.LENGTH)
        of_token = () if logprobs is None else (logprobs,)
        return TokenEvent((token_id,), sequence.finish_reason, num_found, of_token, of_prompt)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        sequence.finish_reason = reason
        if sequence.is_running:
            self._give_back(sequence)
        else:
            self._waiting.remove(sequence)

    def _pages_for(self, num_positions: int) -> int:
        return -(-num_positions // self._page_size)
