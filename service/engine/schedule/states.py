"""The slots of recurrent states: which sequences hold them, and the prefixes whose states they keep.

A layer without keys and values has for each sequence a state that each token changes. So a sequence can go on from a
cached prefix only where the state after that number of tokens was kept, in a slot that nobody writes any more: a
snapshot. A running sequence has one slot that its steps read and write. At the end of a row of 64 positions that others
may want to go on from, it leaves the slot as a snapshot and goes on in another one, so nothing is copied.

Only ends of rows are kept. Rows are also what the layers compute at a time, so what they give does not depend on how a
prompt was cut into steps, nor on where it was found.

Of tokens that may be wrong, since they were drafted, a state reads none. Those that were right are computed again by
the next step, before the ones that are drafted then: so no state ever goes back.

Two rules make this safe, though a step is planned before earlier ones have run. A slot is registered only if no planned
step writes it after the state that its key names. And what a plan reads or writes is held until the next plan: within a
step rows run at the same time, and steps run in their order.
"""

from collections import abc
from collections.abc import Iterable, Iterator

from service.engine.request import FinishReason
from service.engine.schedule.page_pool import PagePool
from service.engine.schedule.plan import PlannedState
from service.engine.schedule.sequence import NO_STATE, Sequence
from service.engine.shapes import StateShapes


class SequenceStates:
    """Connects sequences with the pool of slots."""

    def __init__(self, shapes: StateShapes, *, row_tokens: int, page_size: int) -> None:
        """Make the pool.

        Args:
            shapes: the number of slots.
            row_tokens: of a row of a prompt.
            page_size: tokens of a page, whose keys name snapshots.
        """
        self.pool = PagePool(shapes.num_states)
        self._interval, self._row_tokens, self._page_size = shapes.interval, row_tokens, page_size
        self._of_answers: dict[int, bytes] = {}  # slots that were left while decoding, each with its key then
        self.held: list[int] = []  # that the latest plan reads, or writes and nobody goes on from

    def begin_plan(self) -> None:
        """Release what the plan before this one reads and writes: later steps run after it."""
        self.pool.release(self.held)
        self.held = []

    def longest_kept(self, keys: abc.Sequence[bytes]) -> int:
        """Return the number of the most leading pages of these keys after which the state was kept."""
        pages_of_row = self._row_tokens // self._page_size
        ends = range(len(keys) // pages_of_row * pages_of_row, 0, -pages_of_row)
        return next((end for end in ends if self.pool.find([keys[end - 1]])), 0)

    def take(self, sequence: Sequence, num_pages: int, num_found: int) -> None:
        """Hold the state after the first `num_pages` pages, which `longest_kept` returned.

        Args:
            sequence: it has not begun.
            num_pages: after which it goes on; 0 if it begins at the first.
            num_found: leading pages that others have computed: where their texts part, a later one will go on.
        """
        if num_pages:
            key = sequence.page_keys[num_pages - 1]
            [sequence.state] = slots = self.pool.find([key])
            self.pool.share(slots)
            if self._of_answers.get(sequence.state) == key:
                sequence.latest_kept = num_pages * self._page_size
        sequence.parting = num_found * self._page_size // self._row_tokens * self._row_tokens

    def can_admit(self, running: Iterable[Sequence]) -> bool:
        """Return whether there is a slot for one more sequence, in addition to those that have none yet."""
        return self.pool.can_allocate(1 + sum(s.state == NO_STATE for s in running))

    def can_grow(self, sequence: Sequence) -> bool:
        """Return whether a sequence can be given a slot that its next step may write."""
        return (
            sequence.next_state != NO_STATE
            or self.pool.can_allocate(1)
            or (sequence.state != NO_STATE and self.pool.num_holders(sequence.state) == 1)
        )

    def grow(self, sequence: Sequence) -> None:
        """Give a sequence a slot that its next step may write; check `can_grow` before.

        That is its own, unless that is a snapshot. If there is no other slot, a snapshot of its own is given up.
        """
        if sequence.next_state != NO_STATE:
            return
        if not sequence.is_prefilling and self.pool.can_allocate(1):
            self._keep_latest(sequence)
        own = sequence.state
        is_shared = own != NO_STATE and self.pool.num_holders(own) > 1
        if own == NO_STATE or is_shared or (self.pool.is_registered(own) and self.pool.can_allocate(1)):
            [sequence.next_state] = self.pool.allocate(1)
            return
        self.pool.unregister([own])
        sequence.next_state = own

    def plan(self, sequence: Sequence, end: int) -> PlannedState:
        """Return what a step reads and writes that computes a sequence up to a position; it has grown before."""
        reads, writes = sequence.state, list(self._snapshots(sequence, end))
        self.held += [slot for _, slot in writes]
        if reads not in (NO_STATE, sequence.next_state):
            self.held.append(reads)
        sequence.state, sequence.next_state = sequence.next_state, NO_STATE
        if end in self._wanted(sequence, end - 1, end):
            self.pool.register(sequence.state, self._key(sequence, end))
        return PlannedState(reads, (*writes, (end, sequence.state)))

    def coming(self, sequence: Sequence) -> list[int]:
        """Return the positions at which the rest of a prompt leaves snapshots."""
        return list(self._wanted(sequence, sequence.num_computed, sequence.prefill_len))

    def has_key(self, sequence: Sequence, end: int, other: Sequence) -> bool:
        """Return whether two sequences are equal up to a position."""
        number = end // self._page_size
        return number <= len(other.page_keys) and other.page_keys[number - 1] == self._key(sequence, end)

    def release(self, sequence: Sequence) -> None:
        """Release the slots of a sequence; its state stays findable if it is one that is kept."""
        if sequence.state != NO_STATE:
            self._keep_latest(sequence)
        for slot in {sequence.state, sequence.next_state} - {NO_STATE}:
            self.pool.release([slot])
        sequence.state = sequence.next_state = NO_STATE

    def forget(self, sequence: Sequence) -> None:
        """Make all states of a sequence impossible to find."""
        self.pool.forget(sequence.page_keys)

    def _keep_latest(self, sequence: Sequence) -> None:
        """Make the state of a sequence findable if a row ends there, in place of the one that decoding left before.

        That of the turn before may be wanted once more, for another question, but less than any other.
        """
        end = sequence.next_start
        is_end = end > 0 and end % self._row_tokens == 0 and end // self._page_size <= len(sequence.page_keys)
        has_failed = sequence.finish_reason is FinishReason.ERROR
        if not is_end or has_failed or self.pool.is_registered(sequence.state):
            return
        key, before = self._key(sequence, end), sequence.latest_kept
        self.pool.register(sequence.state, key)
        self._of_answers[sequence.state] = key
        if before and before <= sequence.prompt_len:
            self.pool.demote(self._key(sequence, before))
        elif before and before % self._interval:
            self.pool.forget([self._key(sequence, before)])
        sequence.latest_kept = end

    def _snapshots(self, sequence: Sequence, end: int) -> Iterator[tuple[int, int]]:
        """Yield the positions within a step at which the state is kept, each with a new slot, as long as there are."""
        for position in self._wanted(sequence, sequence.num_computed, end - 1):
            key = self._key(sequence, position)
            if self.pool.find([key]) or not self.pool.can_allocate(1):
                continue
            [slot] = self.pool.allocate(1)
            self.pool.register(slot, key)
            yield position, slot

    def _wanted(self, sequence: Sequence, after: int, last: int) -> Iterator[int]:
        """Yield the ends of rows after a position, up to another one, at which a prompt leaves snapshots.

        These are the last one before the prompt's end, the last one of what others have in common with it, as its
        request says, or as was found of their texts, and some between.
        """
        shared = sequence.request.shared_len // self._row_tokens * self._row_tokens
        kept = {self._last_of_prompt(sequence), sequence.parting, shared}
        ends = range(self._next_end(after), min(last, sequence.prefill_len - 1) + 1, self._row_tokens)
        yield from (end for end in ends if end in kept or end % self._interval == 0)

    def _last_of_prompt(self, sequence: Sequence) -> int:
        return (sequence.prefill_len - 1) // self._row_tokens * self._row_tokens

    def _next_end(self, position: int) -> int:
        return (position // self._row_tokens + 1) * self._row_tokens

    def _key(self, sequence: Sequence, end: int) -> bytes:
        return sequence.page_keys[end // self._page_size - 1]
