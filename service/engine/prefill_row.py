"""The row in which a kernel with a cache per slot computes prompts: what it holds, and the copies around each step."""

from service.engine.schedule.pages import PageCopy
from service.engine.schedule.plan import Plan, PlannedSequence
from service.engine.schedule.sequence import Sequence
from service.engine.shapes import Bucket, EngineShapes, StepKind
from service.kernels.cache_layout import CopyKind


class PrefillRow:
    """Copies a prompt's beginning into the row only if another prompt has used the row in between."""

    def __init__(self, shapes: EngineShapes) -> None:
        self._shapes = shapes
        self._sequence: Sequence | None = None  # the one whose tokens the row holds
        self._end = 0  # how many of them

    def before(self, plan: Plan, bucket: Bucket) -> list[PageCopy]:
        """Return the copies that a step needs before it runs; none unless it is one of prefill."""
        copies = []
        for planned in self._prefilled(plan, bucket):
            is_in_row = planned.sequence is self._sequence and planned.start == self._end
            if planned.start > 0 and not is_in_row:
                pages = planned.sequence.pages[: self._shapes.pages_for(planned.start)]
                copies.append(PageCopy(CopyKind.EXTRACT, planned.slot, 0, tuple(pages)))
        return copies

    def after(self, plan: Plan, bucket: Bucket) -> list[PageCopy]:
        """Return the copies that bring what a step has computed to the sequence's slot."""
        copies = []
        for planned in self._prefilled(plan, bucket):
            self._sequence, self._end = planned.sequence, planned.start + planned.num_tokens
            first, end = planned.start // self._shapes.page_size, self._shapes.pages_for(self._end)
            copies.append(PageCopy(CopyKind.INSERT, planned.slot, first, tuple(planned.sequence.pages[first:end])))
        return copies

    def _prefilled(self, plan: Plan, bucket: Bucket) -> tuple[PlannedSequence, ...]:
        """Return the one sequence of a step that uses the row; a step of several computes them in their slots."""
        uses_row = self._shapes.has_slot_cache and plan.kind is StepKind.PREFILL and bucket.num_seqs == 1
        return plan.seqs if uses_row else ()
