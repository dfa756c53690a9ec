"""A device in plain numbers, which reads and writes pages and states through a step's tables, as kernels do."""

from collections.abc import Iterable

import jax
import numpy as np

from service.engine.batch import PackedStep, pack
from service.engine.page_tables import PageTables
from service.engine.schedule.plan import Plan
from service.engine.schedule.sequence import Sequence
from service.engine.shapes import AvailableSteps, EngineShapes, StateShapes, WindowShapes
from service.kernels.paging import STATE_BEFORE, ZERO_STATE

VOCAB = 97
POISON = -1  # a NaN
PRIME = (1 << 31) - 1


def window_shapes(
    *,
    context: int = 64,
    num_slots: int = 4,
    num_pages: int = 40,
    states: StateShapes | None = None,
    num_drafts: int = 0,
    **windows: int,
) -> EngineShapes:
    """Return shapes with pages of four tokens; `windows` names them: `w8=20` for 20 pages of a window of 8."""
    pages = context // 4
    apart = tuple(
        WindowShapes(int(name[1:]), count, min(pages, (int(name[1:]) + 8 + 8) // 4), 8)
        for name, count in windows.items()
    )
    sizes = {"max_prefill_tokens": 16, "row_tokens": 8, "windows": apart, "states": states}
    sizes["num_drafts"] = num_drafts
    return EngineShapes(num_slots, num_pages, 4, context, **sizes)


def _value(before: int, token_id: int) -> int:
    return (before * 1_000_003 + token_id + 12_345) % PRIME


def expected(shapes: EngineShapes, prompt, count: int) -> list[int]:
    """Return the tokens that follow a prompt, computed without pages."""
    values, token_ids, state = [], list(prompt), 0
    for token_id in token_ids:
        values.append(_value(values[-1] if values else 0, token_id))
        state = _changed(state, token_id)
    while len(token_ids) < len(prompt) + count:
        token_ids.append(_next(shapes, values, state))
        values.append(_value(values[-1], token_ids[-1]))
        state = _changed(state, token_ids[-1])
    return token_ids[len(prompt) :]


def _changed(state: int, token_id: int) -> int:
    return (state * 31 + token_id + 7) % PRIME


def _next(shapes: EngineShapes, values: list[int], state: int) -> int:
    seen = [sum(values), *(sum(values[max(len(values) - w.window, 0) :]) for w in shapes.windows)]
    seen += [] if shapes.states is None else [state]
    return sum((2 * place + 1) * total for place, total in enumerate(seen)) % VOCAB


class PlainDevice:
    """What a position holds depends on all tokens up to it; a token depends on all that it sees, in every pool."""

    def __init__(self, shapes: EngineShapes) -> None:
        self.shapes = shapes
        self._available = AvailableSteps(shapes.buckets, max(shapes.row_counts), is_complete=True)
        self._tables = PageTables(shapes)
        self._pools = [np.full(shapes.num_pages * 4, POISON, np.int64)]
        self._pools += [np.full(w.num_pages * 4, POISON, np.int64) for w in shapes.windows]
        self._states = [POISON] * (0 if shapes.states is None else shapes.states.num_states)
        self._last = [0] * shapes.num_slots

    def run(self, plan: Plan, failing: set[int] = frozenset()) -> list[int]:
        """Return the tokens of each planned sequence; those of failing slots are NaN, and so is what they write."""
        step = pack(plan, self._available, self.shapes, self._tables)
        anew = pack(plan, self._available, self.shapes, PageTables(self.shapes))
        jax.tree.map(np.testing.assert_array_equal, step.inputs, anew.inputs)
        inputs, num_slots = step.inputs, step.bucket.num_seqs
        rows = [(row, slot, int(inputs.starts[slot]), [self._last[slot]]) for row, slot in self._decodes(step)]
        number = 0
        for planned in plan.seqs:
            left = list(planned.token_ids)
            while left:
                count = int(inputs.row_tokens[number])
                own = [int(token_id) for token_id in inputs.token_ids[number, :count]]
                assert own == left[:count]
                rows.append((num_slots + number, planned.slot, int(inputs.row_starts[number]), own))
                left, number = left[count:], number + 1
        for row, slot, start, token_ids in rows:
            for position, token_id in enumerate(token_ids, start):
                before = self._read(0, step, row, position - 1, position)[0] if position else 0
                is_nan = before == POISON or slot in failing
                for pool in range(len(self._pools)):
                    places = self._places(pool, step, row, position, position + 1)
                    self._pools[pool][places] = POISON if is_nan else _value(int(before), token_id)
        after = self._run_states(step, rows, failing)
        ends = {slot: (row, start + len(token_ids)) for row, slot, start, token_ids in rows}
        results = []
        for planned in plan.seqs:
            row, end = ends[planned.slot]
            if not planned.is_sampled:
                results.append(0)
                continue
            assert end - len(planned.drafts) == planned.first_sampled
            own = [
                self._sample(step, row, of_end, after[row][of_end - end - 1] if after else None)
                for of_end in range(planned.first_sampled, end + 1)
            ]
            num_accepted = next((n for n, drafted in enumerate(planned.drafts) if own[n] != drafted), len(own) - 1)
            self._last[planned.slot] = max(own[num_accepted], 0)
            results += own
        return results

    def _decodes(self, step: PackedStep) -> list[tuple[int, int]]:
        return [(slot, slot) for slot in np.flatnonzero(step.inputs.num_tokens).tolist()]

    def _run_states(
        self, step: PackedStep, rows: list[tuple[int, int, int, list[int]]], failing: set[int]
    ) -> dict[int, list[int]]:
        """Return the states after the tokens of each row; all rows run at once, those of a sequence in their order."""
        if step.inputs.states is None:
            return {}
        (reads, writes, *known), num_states = step.inputs.states.tolist(), len(self._states)
        assert [writes[row] for row in range(len(writes)) if row not in {row for row, *_ in rows}].count(
            num_states
        ) == len(writes) - len(rows)
        before, after, writers, readers = list(self._states), {}, {}, {}
        for row, slot, start, token_ids in rows:
            assert (reads[row] == ZERO_STATE) == (start == 0)
            state = after[row - 1][-1] if reads[row] == STATE_BEFORE else 0 if reads[row] < 0 else before[reads[row]]
            if reads[row] >= 0:
                readers.setdefault(reads[row], set()).add(slot)
            after[row] = []
            for token_id in token_ids:
                is_nan = state == POISON or slot in failing
                state = POISON if is_nan else _changed(state, token_id)
                after[row].append(state)
            num_known = known[0][row] if known and row >= step.bucket.num_seqs else len(token_ids)
            if writes[row] < num_states:
                assert writes[row] not in writers, "two rows write one slot"
                writers[writes[row]] = slot
                self._states[writes[row]] = after[row][num_known - 1]
        for state_slot, slot in writers.items():
            assert readers.get(state_slot, set()) <= {slot}, "a step reads a slot of which another sequence writes"
        return after

    def _sample(self, step: PackedStep, row: int, end: int, state: int | None) -> int:
        windows = [0, *(max(end - w.window, 0) for w in self.shapes.windows)]
        seen = [self._read(pool, step, row, first, end) for pool, first in enumerate(windows)]
        seen += [] if state is None else [np.array([state], np.int64)]
        if any((values == POISON).any() for values in seen):
            return -1
        return sum((2 * place + 1) * int(values.sum()) for place, values in enumerate(seen)) % VOCAB

    def _read(self, pool: int, step: PackedStep, row: int, first: int, end: int):
        return self._pools[pool][self._places(pool, step, row, first, end)]

    def _places(self, pool: int, step: PackedStep, row: int, first: int, end: int):
        base, table = 0, step.inputs.page_table[row]
        if pool:
            of_window = step.inputs.windows[self.shapes.windows[pool - 1].window][row]
            base, table = int(of_window[0]), of_window[1:]
        positions = np.arange(first, end) - base
        assert (positions >= 0).all(), "a token sees positions before its table"
        assert (positions // 4 < len(table)).all(), "a row lies behind its table"
        return table[positions // 4].astype(np.int64) * 4 + positions % 4


def held(sequences: Iterable[Sequence]) -> list[list[int]]:
    """Return how many pages of each window each sequence holds."""
    return [[len(of.pages) for of in sequence.windows] for sequence in sequences]
