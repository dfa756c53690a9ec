"""The steps that can run while a start is still compiling: a part of the shapes that grows until it is all of them."""

from collections.abc import Callable
from dataclasses import replace

from service.engine.shapes import Bucket, BucketGrid, EngineShapes, StepKind


class AvailableSteps:
    """The steps that run without waiting for an executable: all of them, or as many as a start has compiled so far.

    A token shape is used from when its widest context is compiled, so that it fits wherever a sequence is.
    """

    def __init__(
        self,
        shapes: EngineShapes,
        is_compiled: Callable[[StepKind, Bucket], bool] = lambda kind, bucket: True,
        are_copies_compiled: Callable[[], bool] = lambda: True,
        num_compiled: Callable[[], int] | None = None,
    ) -> None:
        """Look at what is there; at least `sufficient_buckets` must be.

        Args:
            shapes: the sizes of all steps.
            is_compiled: whether a step is there.
            are_copies_compiled: whether the copies between slots and pages are, without which no prefix is cached.
            num_compiled: how many programs are; while it stays the same, `refresh` does nothing. None to always look.
        """
        self._shapes = shapes
        self._is_compiled = is_compiled
        self._are_copies_compiled = are_copies_compiled
        self._num_compiled = num_compiled
        self._num_seen: int | None = None
        self._missing = shapes.buckets
        self.has_copies = self.is_complete = False  # whether the copies are there; whether everything is
        self.grids = shapes.grids
        self.prefill = shapes.prefill
        self.num_slots = shapes.num_slots  # as many as the widest decode step serves
        self.refresh()

    def refresh(self) -> None:
        """Look for what has been compiled in the meantime."""
        if self._num_compiled is not None:
            num_compiled = self._num_compiled()
            if num_compiled == self._num_seen:
                return
            self._num_seen = num_compiled
        self.has_copies = self.has_copies or self._are_copies_compiled()
        if self._missing:
            self._missing = [step for step in self._missing if not self._is_compiled(*step)]
            self._restrict()
        self.is_complete = self.has_copies and not self._missing

    def _restrict(self) -> None:
        self.grids = {
            kind: BucketGrid(tuple(bucket for bucket in grid if self._is_available(kind, bucket)))
            for kind, grid in self._shapes.grids.items()
        }
        self.num_slots = max(bucket.num_seqs for bucket in self.grids[StepKind.DECODE])
        if not self._missing:
            self.prefill = self._shapes.prefill
            return
        alone = {bucket.num_tokens for bucket in self.grids[StepKind.PREFILL] if bucket.num_seqs == 1}
        counts = {bucket.num_seqs for bucket in self.grids[StepKind.PREFILL]}
        self.prefill = replace(
            self._shapes.prefill,
            num_seqs=tuple(count for count in self._shapes.prefill_seqs if count in counts),
            available_sizes=frozenset(alone),
        )

    def _is_available(self, kind: StepKind, bucket: Bucket) -> bool:
        widest = max(other for other in self._shapes.grids[kind] if other[:2] == bucket[:2])
        return (kind, bucket) not in self._missing and (kind, widest) not in self._missing
