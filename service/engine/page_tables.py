"""The page tables of the sequences that decode, kept from one step to the next: few pages are new in a step."""

from collections.abc import Hashable
from collections.abc import Sequence as Items

import numpy as np

from service.engine.schedule.plan import PlannedSequence
from service.engine.schedule.sequence import WindowPages
from service.engine.shapes import EngineShapes, WindowShapes
from service.engine.steps.inputs import StepInputs


class PageTables:
    """A row for each slot, written as far as the pages of its sequence have changed."""

    def __init__(self, shapes: EngineShapes) -> None:
        self._page_size = shapes.page_size
        self._whole = _Rows(shapes.num_slots, shapes.max_pages)
        self._windows = [(shape, _Rows(shapes.num_slots, 1 + shape.table_pages)) for shape in shapes.windows]
        self._slots = set[int]()  # with a row

    def fill(self, inputs: StepInputs, decodes: Items[PlannedSequence], num_slots: int) -> None:
        """Copy the rows of the sequences that decode into a step, since the device reads it while others are packed.

        Args:
            inputs: the step, whose tables are empty.
            decodes: the sequences.
            num_slots: those of the step.
        """
        slots, whole = {planned.slot for planned in decodes}, self._whole
        for slot in self._slots - slots:
            for rows in (whole, *(rows for _, rows in self._windows)):
                rows.update(slot, None, ())
        self._slots = slots
        for planned in decodes:
            whole.update(planned.slot, planned.sequence.pages_version, planned.sequence.pages)
        width = max((len(planned.sequence.pages) for planned in decodes), default=0)
        count = min(num_slots, len(whole.numbers))  # a step that verifies drafts has more places than slots
        inputs.page_table[:count, :width] = whole.numbers[:count, :width]
        if inputs.windows is None:
            return
        for index, (shape, rows) in enumerate(self._windows):
            for planned in decodes:
                self._update_window(planned, shape, planned.sequence.windows[index], rows)
            inputs.windows[shape.window][:count] = rows.numbers[:count]

    def _update_window(self, planned: PlannedSequence, shape: WindowShapes, held: WindowPages, rows: "_Rows") -> None:
        base = window_base(shape, planned.start)
        version = (planned.sequence.pages_version, base, held.first, len(held.pages))
        if rows.versions[planned.slot] != version:
            rows.update(planned.slot, version, window_row(shape, held, base, self._page_size))


class _Rows:
    """Rows of numbers of pages; behind the last one of a row are zeros."""

    def __init__(self, num_rows: int, width: int) -> None:
        self.numbers = np.zeros((num_rows, width), np.int32)
        self.versions: list[Hashable] = [None] * num_rows
        self._lengths = [0] * num_rows

    def update(self, row: int, version: Hashable, numbers: Items[int]) -> None:
        """Write the new numbers of a row: those behind the known ones, or all if the version is another one."""
        known, length = self._lengths[row], len(numbers)
        if self.versions[row] != version:
            self.numbers[row, :length] = numbers
            self.numbers[row, length:known] = 0
            self.versions[row] = version
        elif known != length:
            self.numbers[row, known:length] = numbers[known:]
        self._lengths[row] = length


def window_base(shape: WindowShapes, start: int) -> int:
    """Return the position at which a window's table begins whose first token is at position `start`."""
    return shape.first_needed(start) // shape.table_align * shape.table_align


def window_row(shape: WindowShapes, held: WindowPages, base: int, page_size: int) -> list[int]:
    """Return the row of a window's table: the position at which it begins, and the pages.

    Behind the window, in place of pages that were given up, is one that the sequence still holds: kernels that read it
    mask it.
    """
    skipped = base // page_size - held.first
    pages = held.pages[skipped:] if skipped >= 0 else [*held.pages[:1] * -skipped, *held.pages]
    return [base, *pages[: shape.table_pages]]
