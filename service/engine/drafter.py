"""A draft model on the device of its target: it computes what it has not seen of sequences, and drafts for all at once.

Its steps run on the device thread, between the step that was read and the one that verifies what they draft.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Items
from typing import Any, override

import jax
import numpy as np

from service.compile.program import Executable
from service.engine.schedule.proposers import DraftModel
from service.engine.schedule.sequence import Sequence
from service.engine.schedule.twin_pages import TwinPages
from service.engine.shapes import EngineShapes
from service.engine.steps.draft import empty_drafts, empty_rows
from service.engine.steps.keys import DraftPart, OfDraft, draft_counts
from service.models.interface import Weights


class Drafter(DraftModel):
    """Runs the programs of a draft model."""

    def __init__(
        self,
        shapes: EngineShapes,
        weights: Weights,
        executables: Mapping[str, Executable],
        *,
        context_len: int,
        vocab_size: int,
    ) -> None:
        """Connect weights, executables and an empty cache.

        Args:
            shapes: the sizes of the target's engine.
            weights: the draft model's, by name.
            executables: the compiled programs by name; they may still be loading.
            context_len: the longest sequence, in tokens, that the draft model was made for.
            vocab_size: the target's, of which every draft is a token.
        """
        self._shapes, self._context_len, self._vocab_size = shapes, context_len, vocab_size
        self._weights: list[jax.Array] = jax.tree.leaves(dict(weights))
        self._executables = executables
        self._cache: list[jax.Array] = jax.tree.leaves(self._program(OfDraft(DraftPart.CACHE))((), [], ()))
        self._twins = TwinPages(shapes.page_size)

    @override
    def catch_up(self, sequences: Items[Sequence]) -> list[Sequence]:
        """See `DraftModel`."""
        rows: list[tuple[Sequence, int, int]] = []
        caught_up: list[Sequence] = []
        for sequence in sequences:
            start, end = self._twins.num_computed(sequence), len(sequence.known_ids) - 1
            if end + 1 >= self._context_len:
                continue
            if start < end - 1:
                cut = itertools.islice(self._cut(start, end), self._shapes.row_counts[-1] - len(rows))
                rows += [(sequence, *part) for part in cut]
                start = rows[-1][2] if rows and rows[-1][0] is sequence else start
            if start >= end - 1:
                caught_up.append(sequence)
        if rows:
            self._read(rows)
        return caught_up

    @override
    def draft(self, lengths: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        """See `DraftModel`."""
        count = next(count for count in draft_counts(self._shapes) if count >= len(lengths))
        inputs = empty_drafts(count, self._shapes)
        starts = [self._twins.num_computed(sequence) for sequence in lengths]
        for place, (sequence, length) in enumerate(lengths.items()):
            known = sequence.known_ids
            inputs.starts[place] = len(known) - 1
            inputs.latest_ids[:, place] = known[-2:] if len(known) > 1 else [0, known[-1]]
            inputs.is_behind[place] = starts[place] < len(known) - 1
            inputs.counts[place] = min(length, self._context_len - len(known))
            inputs.page_table[place, : len(sequence.pages)] = sequence.pages
        drafted: np.ndarray = np.asarray(self._run(OfDraft(DraftPart.DRAFT, count), inputs))
        drafts: dict[Sequence, list[int]] = {}
        for place, sequence in enumerate(lengths):
            token_ids = drafted[place, : inputs.counts[place]].tolist()
            self._twins.write(sequence, starts[place], len(sequence.known_ids), token_ids[:-1])
            drafts[sequence] = list(itertools.takewhile(lambda token_id: token_id < self._vocab_size, token_ids))
        return drafts

    @override
    def forget(self, sequence: Sequence) -> None:
        """See `DraftModel`."""
        self._twins.forget(sequence)

    def padded_steps(self) -> Iterator[Callable[[], None]]:
        """Yield calls that together run every executable once on padding; they may run between other steps."""
        yield lambda: self._read([])
        for count in draft_counts(self._shapes):
            yield lambda count=count: self._draft_padding(count)

    def delete_state(self) -> None:
        """Free the cache; the drafter cannot be used afterwards."""
        for array in self._cache:
            array.delete()

    def _draft_padding(self, count: int) -> None:
        """Draft a token of no sequence, with the last token but one."""
        inputs = empty_drafts(count, self._shapes)
        jax.block_until_ready(self._run(OfDraft(DraftPart.DRAFT, count), inputs))

    def _cut(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of a range of positions that lie in one row."""
        while start < end:
            after = min((start // self._shapes.row_tokens + 1) * self._shapes.row_tokens, end)
            yield start, after
            start = after

    def _read(self, rows: Items[tuple[Sequence, int, int]]) -> None:
        """Compute positions of known tokens, and wait, so that the next step's time is its own."""
        num_rows = self._shapes.row_counts[-1]
        inputs = empty_rows(num_rows, self._shapes)
        for row, (sequence, start, end) in enumerate(rows):
            inputs.row_starts[row], inputs.row_tokens[row] = start, end - start
            inputs.token_ids[row, : end - start] = sequence.known_ids[start:end]
            inputs.page_table[row, : len(sequence.pages)] = sequence.pages
        jax.block_until_ready(self._run(OfDraft(DraftPart.READ, num_rows), inputs.to_embed()))
        for sequence, start, end in rows:
            self._twins.write(sequence, start, end)

    def _run(self, key: OfDraft, inputs: Any) -> Any:
        return self._program(key)(self._weights, self._cache, inputs)

    def _program(self, key: OfDraft) -> Executable:
        return self._executables[str(key)]
