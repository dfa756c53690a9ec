"""The scheduler: before every device step, it decides which sequences run and with how many tokens.

Pure Python: it sees lengths and page counts, never arrays, so a unit test can answer every question of policy.

A plan is made before the previous step's tokens are read. So a sequence that ended in that step may run once more, and
`commit` drops the token of that extra run. The sequence's slot and pages are free at once all the same: device steps
run in order, so a later owner writes after that last stray write and reads only positions that it wrote itself.

Pages are taken as a sequence grows. Running out of them is not an error: the running sequence of the lowest rank (or
one of a batch, for a client's) releases its pages, waits, and later recomputes from all its tokens, with the same text.

A sequence whose adapter finds no slot lets later ones pass, `MAX_PASSED` times the number of slots: then all wait.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items
from heapq import heappop, heappush
from operator import attrgetter

import numpy as np
from jaxtyping import Float

from service.engine.request import FinishReason, Request, StepLogprobs, TokenEvent, TokenLogprobs
from service.engine.schedule.adapter_slots import AdapterSlots
from service.engine.schedule.chunking import Chunking
from service.engine.schedule.memories import Memories
from service.engine.schedule.page_pool import PagePool
from service.engine.schedule.pages import SequencePages, page_key, root_key_of
from service.engine.schedule.plan import Plan, PlannedRows, PlannedSequence
from service.engine.schedule.sequence import NO_STATE, Sequence, WindowPages
from service.engine.schedule.speculation import Speculation
from service.engine.schedule.states import SequenceStates
from service.engine.schedule.waiting import Waiting
from service.engine.shapes import AvailableSteps, EngineShapes, RowShapes, StateShapes, StepKind, WindowShapes

MAX_PASSED = 2  # sequences, for each slot of the engine, that begin while one waits for a slot of its adapter

_RANK = attrgetter("rank")


class Scheduler:
    """Owns every sequence from its arrival to its end."""

    def __init__(
        self,
        *,
        num_slots: int,
        num_pages: int,
        page_size: int,
        chunking: Chunking,
        memory_pages: int = 0,
        media: RowShapes | None = None,
        encoder_parts: int = 0,
        adapter_slots: int = 0,
        windows: tuple[WindowShapes, ...] = (),
        states: StateShapes | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        self.num_preemptions = 0
        self.speculation = speculation
        self.is_loading = False  # whether executables are missing, without which nothing is drafted
        self.page_size = page_size
        step_tokens = chunking.num_rows * chunking.row_tokens
        self._pages = SequencePages(
            num_pages=num_pages,
            page_size=page_size,
            windows=windows,
            step_tokens=step_tokens,
            states=states,
            row_tokens=chunking.row_tokens,
        )
        self.pages = self._pages.pool
        self._states = self._pages.states
        self.windows = tuple(pool for _, pool in self._pages.windows)
        self.places = PagePool(0 if media is None else media.num_places)  # for the rows of media
        self.memories = (
            Memories(self.pages, num_pages=lambda _: memory_pages, num_parts=encoder_parts)
            if media is None
            else Memories(self.places, num_pages=lambda m: media.places_for(m.num_rows), num_parts=encoder_parts)
        )
        self._adapters = AdapterSlots(adapter_slots)
        # Those that wait for a slot of their adapter, the longest first, and how many sequences had begun before.
        self._held_up: dict[Sequence, int] = {}
        self._num_begun = 0
        self._was_part = False  # whether the last plan was a part of an encoding
        self._are_media_whole = media is not None and media.is_whole
        self._chunking = chunking
        self._free_slots = list(range(num_slots))  # a heap
        self._num_slots = num_slots
        self._waiting = Waiting()
        self._running: list[Sequence] = []  # in the order of admission
        self._num_arrived = self._num_chunks = 0

    @classmethod
    def of(
        cls, shapes: EngineShapes, max_stall_s: float | None = None, speculation: Speculation | None = None
    ) -> "Scheduler":
        """Return the scheduler of an engine of these shapes.

        Args:
            shapes: the sizes of the engine.
            max_stall_s: how long prompts may hold up the sequences that decode; None for two decode steps.
            speculation: drafts tokens; None if nothing is drafted.
        """
        return cls(
            num_slots=shapes.num_slots,
            num_pages=shapes.num_pages,
            page_size=shapes.page_size,
            chunking=Chunking.of(shapes, max_stall_s),
            memory_pages=shapes.memory_pages,
            media=shapes.media,
            encoder_parts=shapes.encoder_parts,
            adapter_slots=0 if shapes.adapters is None else shapes.adapters.num_slots,
            windows=shapes.windows,
            states=shapes.states,
            speculation=speculation,
        )

    @property
    def num_waiting(self) -> int:
        """Sequences without a slot."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Sequences with a slot."""
        return len(self._running)

    @property
    def num_slots(self) -> int:
        """The most sequences that run at the same time."""
        return self._num_slots

    def adapter_names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of the adapters of running sequences, and of waiting ones."""
        if not self._adapters.num_users:
            return (), ()
        running, waiting = (
            tuple(sorted({s.request.adapter.name for s in sequences if s.request.adapter is not None}))
            for sequences in (self._running, self._waiting)
        )
        return running, waiting

    @property
    def num_adapter_slots(self) -> int:
        """The most adapters of running sequences."""
        return len(self._adapters.num_users)

    @property
    def num_used_pages(self) -> int:
        """Pages that sequences hold, if those of the kind of layers whose pages are scarcest were all."""
        pools = (self.pages, *self.windows)
        used = max((1 - pool.num_available / pool.num_pages for pool in pools if pool.num_pages), default=0)
        return round(used * self.pages.num_pages)

    @property
    def has_free_slot(self) -> bool:
        """Whether a waiting sequence could run if there were pages."""
        return bool(self._free_slots)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to plan."""
        return not self._waiting and not self._running

    def add(self, request: Request) -> Sequence:
        """Take a request; it waits for a slot and for pages."""
        sequence = Sequence(request, self._num_arrived, root_key_of(request))
        needed = self._pages.pages_for(sequence.max_positions) + self._num_memory_pages(sequence)
        assert needed <= self.pages.num_pages, "a request that does not fit the pages is refused before"
        sequence.windows = tuple(WindowPages() for _ in self._pages.windows)
        self._num_arrived += 1
        self._waiting.add(sequence)
        return sequence

    def num_cached(self, keys: Iterable[bytes]) -> int:
        """Return how many of the first tokens of a prompt are cached now: on another thread than this one's, a hint.

        Args:
            keys: those of `prompt_keys`.
        """
        return self._pages.num_cached(keys)

    def adapt(self, available: AvailableSteps) -> None:
        """Restrict plans to the steps that are compiled."""
        self._chunking.num_rows = available.num_rows

    @property
    def decode_s(self) -> float | None:
        """How long a decode step takes, on average over the latest; None before there was one."""
        return self._chunking.decode_s

    def observe(self, plan: Plan, elapsed_s: float, since_last_s: float | None = None) -> None:
        """Take the time that a step took, from which follows how much of prompts a later one computes, and of drafts.

        Args:
            plan: the step.
            elapsed_s: since it was dispatched, or since the step before it was read if that was later.
            since_last_s: since the step before it was read; None if there was none, or a pause between.
        """
        if plan.part is not None:
            return
        num_prompt_tokens = plan.num_prompt_tokens
        if num_prompt_tokens == 0 and self.speculation is not None:
            drafted = [planned.num_tokens for planned in plan.seqs if planned.token_ids]
            since_s = elapsed_s if since_last_s is None else since_last_s
            self.speculation.observe(plan.num_decodes, len(drafted), sum(drafted), since_s)
            if drafted:
                return
        self._chunking.observe(num_decodes=plan.num_decodes, num_prompt_tokens=num_prompt_tokens, elapsed_s=elapsed_s)

    def abort(self, sequence: Sequence) -> None:
        """End a sequence now, in any state; no event of it follows."""
        if not sequence.is_finished:
            self._finish(sequence, FinishReason.ABORT)

    @property
    def may_draft(self) -> bool:
        """Whether drafts would be planned if the step in flight were read before."""
        if self.speculation is None or self.is_loading or any(s.is_prefilling for s in self._running):
            return False
        return self.speculation.may_draft([s for s in self._running if s.can_decode])

    def plan(self, only: StepKind | None = None) -> Plan | None:
        """Choose the next step: all sequences that decode, and as much of prompts as they can wait for.

        Between two such steps runs at most one part of an encoding.

        Args:
            only: the kind that the step must have, to measure one kind by itself.
        """
        if self._states is not None:
            self._states.begin_plan()
        if self.windows:
            for sequence in self._running:
                self._pages.give_up_unseen(sequence)
        self._admit()
        if only is None and self.memories.has_part and not self._was_part:
            self._was_part = True
            return Plan((), self.memories.next_part())
        self._was_part = False
        decoding = [] if only is StepKind.PREFILL else sorted((s for s in self._running if s.can_decode), key=_RANK)
        has_prompts = only is not StepKind.DECODE and len(decoding) < len(self._running)
        num_behind = sum(s.num_behind > 0 for s in decoding)  # which take a row each
        num_rows = self._chunking.num_rows - num_behind
        ends = self._cut_prompts(self._chunking.budget(len(decoding)), num_rows) if has_prompts and num_rows > 0 else {}
        self._grow_all({s: s.num_computed + 1 for s in decoding})
        self._grow_all(ends)
        drafts: Mapping[Sequence, tuple[int, ...]] = {}
        may_draft = not self.is_loading and not ends and only is None and (num_rows > 0 or not has_prompts)
        if self.speculation is not None and may_draft:
            drafts = self.speculation.choose([s for s in decoding if s.is_running], self._reserve)
        decodes = [
            self._plan_known(s, drafts.get(s, ())) if s in drafts or s.num_behind else self._plan_token(s)
            for s in decoding
            if s.is_running
        ]
        chunks = [self._plan_chunk(s, end) for s, end in ends.items() if s.is_running]
        if decodes or chunks:
            return Plan((*decodes, *chunks), writes=self._adapters.take_writes())
        return Plan((), self.memories.next_part()) if only is None and self.memories.has_part else None

    def commit(
        self, plan: Plan, token_ids: Iterable[int], logprobs: StepLogprobs | None = None
    ) -> list[tuple[Sequence, TokenEvent]]:
        """Take the tokens that a step sampled, and return the events of its sequences.

        They are one per planned sequence, and one more for each of its drafts. A negative token id means that the
        sequence's logits are NaN or infinite: it ends only that sequence, and so does a constraint that failed.
        """
        events: list[tuple[Sequence, TokenEvent]] = []
        sampled, first = list(token_ids), 0
        if len(sampled) != (needed := sum(planned.num_samples for planned in plan.seqs)):
            raise ValueError(f"a plan of {needed} sampled tokens was given {len(sampled)}")
        for index, planned in enumerate(plan.seqs):
            sequence = planned.sequence
            if logprobs is not None and logprobs.prompts[index]:
                sequence.keep_prompt_logprobs(planned.start, logprobs.prompts[index])
            if logprobs is not None and logprobs.attention and (scores := logprobs.attention[index]) is not None:
                sequence.attention = [*(sequence.attention if planned.start else ()), scores]
            after = first + planned.num_samples
            if planned.is_sampled and not sequence.is_finished:
                of_tokens = (None,) * planned.num_samples if logprobs is None else logprobs.tokens[first:after]
                if planned.drafts:
                    taken = self._commit_drafts(planned, sampled[first:after], of_tokens)
                    events += ((sequence, event) for event in taken)
                else:
                    events.append((sequence, self._commit_token(sequence, sampled[first], of_tokens[0])))
            first = after
        return events

    def _commit_drafts(
        self, planned: PlannedSequence, token_ids: Items[int], logprobs: Items[TokenLogprobs | None]
    ) -> list[TokenEvent]:
        """Take the tokens that a step sampled for a sequence with drafts, up to the first that is not as drafted."""
        sequence, drafts, events = planned.sequence, planned.drafts, []
        failure, sequence.draft_failure = sequence.draft_failure, None
        sequence.num_drafted = 0
        is_predicted = self.speculation is not None and self.speculation.is_predicted(sequence)
        for place, (token_id, of_token) in enumerate(zip(token_ids, logprobs, strict=True)):
            if sequence.is_running:
                sequence.num_computed = planned.first_sampled + place
                if planned.state is not None:
                    sequence.num_behind = place
            if failure is not None and failure[0] == place and token_id < 0:
                sequence.failure = failure[1]
            events.append(self._commit_token(sequence, token_id, of_token))
            if sequence.is_finished or place == len(drafts) or token_id != drafts[place]:
                break
        if self.speculation is not None:
            self.speculation.count(len(drafts), len(events) - 1)
        if is_predicted:
            num_accepted = len(events) - 1
            events[0] = events[0]._replace(num_predicted=(num_accepted, len(drafts) - num_accepted))
        if sequence.is_running:
            sequence.num_planned = len(sequence.output_ids)
            self._pages.give_back(sequence, sequence.num_computed)
        return events

    def check_integrity(self) -> None:
        """Check that no page and no slot was lost.

        Raises:
            PageIntegrityError: a page was.
        """
        of_sequences, of_memories = [s.pages for s in (*self._running, *self._waiting)], self.memories.held
        has_places = self.places.num_pages > 0
        self.pages.check_integrity(of_sequences if has_places else [*of_sequences, *of_memories])
        self.places.check_integrity(of_memories if has_places else [])
        for number, pool in enumerate(self.windows):
            pool.check_integrity([s.windows[number].pages for s in (*self._running, *self._waiting)])
        if self._states is not None:
            of_each = ([s.state] for s in self._running if s.state != NO_STATE)
            self._states.pool.check_integrity([*of_each, self._states.held])
        slots = [*self._free_slots, *(s.slot for s in self._running)]
        assert len(set(slots)) == len(slots), f"slots {sorted(slots)} have a double"
        users = [s.adapter_slot for s in self._running if s.adapter_slot >= 0]
        assert sum(self._adapters.num_users) == len(users), "a slot of an adapter was lost"

    def _admit(self) -> None:
        while self._waiting:
            sequence = self._next_waiting()
            if sequence is None:
                return
            while not (self._free_slots and self._fits(sequence)):
                victim = max(self._running, key=_RANK, default=sequence)
                if sequence.request.is_background or not victim.request.is_background:
                    return
                self._preempt(victim)
            self._waiting.remove(sequence)
            self._held_up.pop(sequence, None)
            self._num_begun += 1
            if sequence.last_chunk < 0:  # a preempted one was counted when it began
                self._waiting.charge_prompt(sequence)
            sequence.slot = heappop(self._free_slots)  # the lowest: a decode step is as wide as the highest one in use
            if sequence.request.memory is not None:
                sequence.memory = self.memories.hold(sequence.request.memory, sequence.root_key)
            if sequence.request.adapter is not None:
                sequence.adapter_slot = self._adapters.hold(sequence.request.adapter)
            sequence.prefill_len = len(sequence.known_ids)
            sequence.num_planned = len(sequence.output_ids)
            self._running.append(sequence)

    def _next_waiting(self) -> Sequence | None:
        """Return the sequence to admit next; None if all must wait for the slot of an adapter."""
        if not self._adapters.num_users:
            return self._waiting.first()
        longest = next(iter(self._held_up), None)
        if longest is not None and self._num_begun - self._held_up[longest] >= MAX_PASSED * self._num_slots:
            first = self._waiting.first()
            candidates = [longest, *([first] if first.request.priority < longest.request.priority else [])]
            return next((s for s in candidates if self._adapters.can_hold(s.request.adapter)), None)

        def may_begin(sequence: Sequence) -> bool:
            may_begin = self._adapters.can_hold(sequence.request.adapter)
            if not may_begin:
                self._held_up.setdefault(sequence, self._num_begun)
            return may_begin

        return self._waiting.first_of(may_begin)

    def _fits(self, sequence: Sequence) -> bool:
        """Return whether its prefill fits in addition to those in progress: otherwise it would soon be preempted."""
        if self._states is not None and not self._states.can_admit(self._running):
            return False
        prefilling = [s for s in self._running if s.is_prefilling]
        in_progress = sum(self._pages.pages_for(s.prefill_len) - len(s.pages) for s in prefilling)
        own = self._pages.pages_for(len(sequence.known_ids)) + self._num_memory_pages(sequence)
        return self.pages.can_allocate(in_progress + own) and self._pages.fit_windows(sequence, prefilling)

    def _num_memory_pages(self, sequence: Sequence) -> int:
        memory = sequence.request.memory
        return 0 if memory is None else self.memories.num_missing(memory, sequence.root_key)

    def _cut_prompts(self, budget: int, num_rows: int) -> Mapping[Sequence, int]:
        """Cut a step from the prompts; those of equal priority alternate, so that a long one does not block the others.

        Args:
            budget: the most tokens.
            num_rows: the most rows.

        Returns:
            the position up to which each sequence of the step is computed.
        """
        chunking = self._chunking
        candidates = sorted(
            (s for s in self._running if s.is_prefilling and self._remembers(s) and self._reach(s) > s.num_computed),
            key=lambda s: (s.request.priority, s.last_chunk, s.arrival),
        )
        ends: dict[Sequence, int] = {}
        for sequence in self._without_repeated_work(candidates, num_rows):
            start = sequence.num_computed
            end = chunking.end(
                start,
                self._reach(sequence),
                num_tokens=budget,
                num_rows=num_rows,
                blocks=self._blocks(sequence),
                may_exceed=not ends,
            )
            if end == start:
                break
            ends[sequence] = end
            budget -= end - start
            num_rows -= chunking.count_rows(start, end)
            if budget <= 0 or num_rows == 0:
                break
        return ends

    def _remembers(self, sequence: Sequence) -> bool:
        """Return whether a sequence's memory is whole, if it has one."""
        return sequence.memory is None or self.memories.is_encoded(sequence.memory)

    def _reach(self, sequence: Sequence) -> int:
        """Return up to which position a prompt can be computed: to the first medium that has no rows yet.

        A medium that is not encoded is held, so that it will be, as soon as there are places for all of the prompt's.
        """
        media = sequence.request.media
        if not media:
            return sequence.prefill_len
        self._pages.find_prefix(sequence)
        left = [number for number, placed in enumerate(media) if placed.end > sequence.num_computed]
        missing = [number for number in left if number not in sequence.media]
        if missing:
            roots = {number: page_key(sequence.root_key, media[number].medium.digest) for number in missing}
            different = {root: media[number].medium for number, root in roots.items()}
            needed = sum(self.memories.num_missing(medium, root) for root, medium in different.items())
            if self.places.can_allocate(needed):
                for number, root in roots.items():
                    sequence.media[number] = self.memories.hold(media[number].medium, root)
        for number in left:
            if number not in sequence.media or not self.memories.is_encoded(sequence.media[number]):
                previous = media[number - 1].end if self._are_media_whole and number > 0 else 0
                return self._chunking.begin_before(media[number].start, previous)
        return sequence.prefill_len

    def _blocks(self, sequence: Sequence) -> list[tuple[int, int]]:
        """Return where the media that no step may cut begin and end, of those that are not computed yet."""
        if not self._are_media_whole:
            return []
        return [(placed.start, placed.end) for placed in sequence.request.media if placed.end > sequence.num_computed]

    def _without_repeated_work(self, candidates: list[Sequence], most: int) -> list[Sequence]:
        """Find cached prefixes, and leave out sequences that would compute the same page as one before them.

        Those find that page in a later step.
        """
        if self._states is not None:
            return self._without_repeated_states(self._states, candidates)[:most]
        page_keys: set[bytes] = set()
        different = []
        for sequence in candidates[:most]:
            self._pages.find_prefix(sequence)
            key = self._pages.next_page_key(sequence)
            if key is None or key not in page_keys:
                different.append(sequence)
            if key is not None:
                page_keys.add(key)
        return different

    def _without_repeated_states(self, states: SequenceStates, candidates: list[Sequence]) -> list[Sequence]:
        """The same of a model whose layers keep states: one that has not begun waits for a state to go on from.

        Those that are further on than others leave it, so they come first here.
        """
        coming: list[tuple[Sequence, int]] = []
        different = set()
        for sequence in sorted(candidates, key=lambda s: s.num_computed == 0):
            if sequence.num_computed == 0:
                self._pages.extend_keys(sequence)
                if any(states.has_key(other, end, sequence) for other, end in coming if end < sequence.prefill_len):
                    continue
                self._pages.find_prefix(sequence)
            different.add(sequence)
            coming += [(sequence, end) for end in states.coming(sequence)]
        return [sequence for sequence in candidates if sequence in different]

    def _plan_token(self, sequence: Sequence) -> PlannedSequence:
        start = sequence.num_computed
        state = None if self._states is None else self._states.plan(sequence, start + 1)
        planned = PlannedSequence(sequence, sequence.slot, start, (), is_sampled=True, state=state)
        sequence.num_computed += 1
        sequence.num_planned += 1
        return planned

    def _plan_known(self, sequence: Sequence, drafts: tuple[int, ...]) -> PlannedSequence:
        """Plan the tokens of a sequence up to the last one, and those of its drafts for which there are pages."""
        start, num_again = sequence.next_start, sequence.num_behind
        drafts = drafts[: self._reserve(sequence, len(drafts))]
        if not drafts and not num_again:
            return self._plan_token(sequence)
        known = tuple(sequence.known_ids[start:])
        state = None if self._states is None else self._states.plan(sequence, start + len(known))
        sequence.num_behind = 0 if state is None else len(drafts)
        sequence.num_drafted = len(drafts)
        sequence.num_computed += 1 + len(drafts)
        sequence.num_planned += 1 + len(drafts)
        return PlannedSequence(
            *(sequence, sequence.slot, start, (*known, *drafts)),
            is_sampled=True,
            state=state,
            drafts=drafts,
            num_again=num_again,
        )

    def _reserve(self, sequence: Sequence, length: int) -> int:
        """Give a sequence that decodes the pages for drafts of a length; return for how many tokens there are some."""
        while length > 0 and not self._pages.can_grow(sequence, sequence.num_computed + 1 + length):
            length -= 1
        if length > 0:
            self._pages.grow(sequence, sequence.num_computed + 1 + length)
        return length

    def _plan_chunk(self, sequence: Sequence, end: int) -> PlannedSequence:
        start = sequence.num_computed
        state = None if self._states is None else self._states.plan(sequence, end)
        sequence.num_computed = end
        sequence.last_chunk = self._num_chunks = self._num_chunks + 1
        is_last = not sequence.is_prefilling
        sequence.num_planned += is_last
        self._pages.register(sequence, end)
        token_ids = tuple(sequence.known_ids[start:end])
        rows = self._take_rows(sequence, start, end) if sequence.media else ()
        return PlannedSequence(sequence, sequence.slot, start, token_ids, is_sampled=is_last, rows=rows, state=state)

    def _take_rows(self, sequence: Sequence, start: int, end: int) -> tuple[PlannedRows, ...]:
        """Return the rows of a chunk, and give up the media that later chunks do not touch.

        Steps run in order, so rows that take the place of these are written after this chunk has read them.
        """
        rows = []
        for number, memory in list(sequence.media.items()):
            placed = sequence.request.media[number]
            if placed.start < end and start < placed.end:
                rows.append(PlannedRows(placed.start, placed.end, tuple(memory.pages), placed.line))
            if placed.end <= end:
                self.memories.release(sequence.media.pop(number))
        return tuple(rows)

    def _grow_all(self, num_positions: Mapping[Sequence, int]) -> None:
        """Give each sequence the pages for its positions, preempting those of the lowest rank if there are none."""
        for sequence, needed in num_positions.items():
            if sequence.is_running and not self._pages.holds(sequence, needed):
                self._grow(sequence, needed)

    def _grow(self, sequence: Sequence, num_positions: int) -> None:
        while not self._pages.can_grow(sequence, num_positions):
            victim = max(self._running, key=_RANK)
            self._preempt(victim)
            if victim is sequence:
                return
        self._pages.grow(sequence, num_positions)

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        self._release(sequence)
        sequence.num_computed = sequence.prefill_len = sequence.num_registered = 0
        sequence.num_drafted = sequence.num_behind = 0
        self._waiting.add(sequence)

    def _release(self, sequence: Sequence) -> None:
        """Take slot and pages from a running sequence; whole pages whose tokens are known stay findable."""
        if sequence.finish_reason is FinishReason.ERROR:  # a sequence that found its pages might fail as it did
            self._pages.forget(sequence)
        else:
            self._pages.register(sequence, min(sequence.num_computed, len(sequence.known_ids)))
        if sequence.memory is not None:
            self.memories.release(sequence.memory, is_broken=sequence.finish_reason is FinishReason.ERROR)
            sequence.memory = None
        self._release_media(sequence)
        if sequence.adapter_slot >= 0:
            self._adapters.release(sequence.adapter_slot)
            sequence.adapter_slot = -1
        self._running.remove(sequence)
        heappush(self._free_slots, sequence.slot)
        self._pages.release(sequence)
        sequence.slot = -1

    def _release_media(self, sequence: Sequence) -> None:
        while sequence.media:
            _, memory = sequence.media.popitem()
            self.memories.release(memory)
        if sequence.finish_reason is FinishReason.ERROR:
            for placed in sequence.request.media:
                self.memories.forget(placed.medium, page_key(sequence.root_key, placed.medium.digest))

    def _commit_token(self, sequence: Sequence, token_id: int, logprobs: TokenLogprobs | None) -> TokenEvent:
        if token_id < 0 or sequence.failure is not None:
            self._finish(sequence, FinishReason.ERROR)
            return TokenEvent((), FinishReason.ERROR)
        is_first = not sequence.output_ids
        num_cached_tokens = sequence.num_cached_tokens if is_first else 0
        of_prompt = tuple(sequence.prompt_logprobs) if is_first else ()
        if token_id in sequence.request.stop_ids:
            self._finish(sequence, FinishReason.STOP)
            stop = (token_id, logprobs)
            return TokenEvent(
                (), FinishReason.STOP, num_cached_tokens, (), of_prompt, stop, *_of_first(sequence, is_first)
            )
        sequence.append(token_id)
        self._waiting.charge_token(sequence)
        if len(sequence.output_ids) == sequence.request.max_tokens:
            self._finish(sequence, FinishReason.LENGTH)
        of_token = () if logprobs is None else (logprobs,)
        reason, others = sequence.finish_reason, _of_first(sequence, is_first)
        return TokenEvent((token_id,), reason, num_cached_tokens, of_token, of_prompt, None, *others)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        sequence.finish_reason = reason
        if self.speculation is not None:
            self.speculation.forget(sequence)
        if sequence.is_running:
            self._release(sequence)
        else:
            self._waiting.remove(sequence)
            self._held_up.pop(sequence, None)


def _of_first(
    sequence: Sequence, is_first: bool
) -> tuple[TokenLogprobs | None, Float[np.ndarray, "head prompt_token position"] | None]:
    """Return what a sequence's first event has besides its tokens."""
    if not is_first:
        return None, None
    return sequence.probe, np.concatenate(sequence.attention, axis=1) if sequence.attention else None
