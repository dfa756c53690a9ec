"""A draft model or a head on the device of its target: it reads what it has not read of sequences, and drafts for all.

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
from service.engine.steps.draft import OF_MODEL, Lag, ReadInputs, empty_drafts, empty_rows
from service.engine.steps.keys import DraftPart, OfDraft
from service.models.interface import Weights


class Drafter(DraftModel):
    """Runs the programs of a draft model or a head."""

    def __init__(
        self,
        shapes: EngineShapes,
        weights: Weights,
        executables: Mapping[str, Executable],
        cache: list[jax.Array],
        *,
        features: list[jax.Array] | None = None,
        context_len: int,
        vocab_size: int,
        lag: Lag = OF_MODEL,
    ) -> None:
        """Connect weights, executables and a cache.

        Args:
            shapes: the sizes of the target's engine.
            weights: its own, by name.
            executables: the compiled programs by name; they may still be loading.
            cache: the arrays of its keys and values, which its steps replace.
            features: the array of what a head reads, which the target's steps replace; None for a model.
            context_len: the longest sequence, in tokens, that it was made for.
            vocab_size: the target's, of which every draft is a token.
            lag: where it is, compared to its target.
        """
        self._shapes, self._context_len, self._vocab_size = shapes, context_len, vocab_size
        self._weights: list[jax.Array] = jax.tree.leaves(dict(weights))
        self._executables, self._cache, self._lag = executables, cache, lag
        self._kept = features or []
        self._twins = TwinPages(shapes.page_size, lag.shift)

    @override
    def catch_up(self, sequences: Items[Sequence]) -> list[Sequence]:
        """See `DraftModel`."""
        rows: list[tuple[Sequence, int, int]] = []
        caught_up: list[Sequence] = []
        for sequence in sequences:
            start, end = self._twins.num_computed(sequence), self._last(sequence)
            if end < 0 or len(sequence.known_ids) >= self._context_len:
                continue
            if start < end - self._lag.most_behind:
                cut = itertools.islice(self._cut(start, end), self._shapes.row_counts[-1] - len(rows))
                rows += [(sequence, *part) for part in cut]
                start = rows[-1][2] if rows and rows[-1][0] is sequence else start
            if start >= end - self._lag.most_behind:
                caught_up.append(sequence)
        if rows:
            self._read(rows)
        return caught_up

    @override
    def draft(self, lengths: Mapping[Sequence, int]) -> dict[Sequence, list[int]]:
        """See `DraftModel`."""
        inputs = empty_drafts(self._shapes, self._lag)
        num_latest = len(inputs.latest_ids)
        starts = [self._twins.num_computed(sequence) for sequence in lengths]
        for place, (sequence, length) in enumerate(lengths.items()):
            known = sequence.known_ids
            latest = known[-num_latest:]
            inputs.starts[place] = self._last(sequence)
            inputs.latest_ids[num_latest - len(latest) :, place] = latest
            inputs.num_behind[place] = max(self._last(sequence) - starts[place], 0)
            inputs.counts[place] = min(length, self._context_len - len(known))
            inputs.page_table[place, : len(sequence.pages)] = sequence.pages
        inputs = inputs._replace(features=self._features)
        drafted: np.ndarray = np.asarray(self._run(DraftPart.DRAFT, inputs))
        drafts: dict[Sequence, list[int]] = {}
        for place, sequence in enumerate(lengths):
            token_ids = drafted[place, : inputs.counts[place]].tolist()
            end = self._last(sequence) + 1
            self._twins.write(sequence, starts[place], end, token_ids[:-1])
            drafts[sequence] = list(itertools.takewhile(lambda token_id: token_id < self._vocab_size, token_ids))
        return drafts

    @override
    def forget(self, sequence: Sequence) -> None:
        """See `DraftModel`."""
        self._twins.forget(sequence)

    def padded_steps(self) -> Iterator[Callable[[], None]]:
        """Yield calls that together run every executable once on padding; they may run between other steps."""
        yield lambda: self._read([])
        yield self._draft_padding

    def _draft_padding(self) -> None:
        """Draft a token of no sequence."""
        inputs = empty_drafts(self._shapes, self._lag)._replace(features=self._features)
        jax.block_until_ready(self._run(DraftPart.DRAFT, inputs))

    def _last(self, sequence: Sequence) -> int:
        """Return the last position that can be read of a sequence; negative for none."""
        return len(sequence.known_ids) - 1 - self._lag.shift

    def _cut(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Yield the parts of a range of positions that lie in one row."""
        while start < end:
            after = min((start // self._shapes.row_tokens + 1) * self._shapes.row_tokens, end)
            yield start, after
            start = after

    def _read(self, rows: Items[tuple[Sequence, int, int]]) -> None:
        """Compute positions of known tokens, and wait, so that the next step's time is its own."""
        inputs, shift = empty_rows(self._shapes), self._lag.shift
        for row, (sequence, start, end) in enumerate(rows):
            inputs.row_starts[row], inputs.row_tokens[row] = start, end - start
            inputs.token_ids[row, : end - start] = sequence.known_ids[start + shift : end + shift]
            inputs.page_table[row, : len(sequence.pages)] = sequence.pages
        jax.block_until_ready(self._run(DraftPart.READ, ReadInputs(inputs.to_embed(), self._features)))
        for sequence, start, end in rows:
            self._twins.write(sequence, start, end)

    @property
    def _features(self) -> jax.Array | None:
        """What the target's steps have kept, as it is after the last one that was dispatched."""
        return self._kept[0] if self._kept else None

    def _run(self, part: DraftPart, inputs: Any) -> Any:
        return self._executables[str(OfDraft(part))](self._weights, self._cache, inputs)
