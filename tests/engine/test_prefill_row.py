"""Copies around a prefill step: what the row holds already is not copied into it again."""

from dataclasses import replace

from service.engine.batch import PrefillRow
from service.engine.schedule.chunking import Chunking
from service.engine.schedule.pages import PageCopy
from service.engine.schedule.plan import Plan
from service.engine.schedule.scheduler import Scheduler
from service.engine.shapes import Bucket, EngineShapes, StepKind
from service.kernels.cache_layout import CopyKind
from tests.engine.schedule.scheduling import make_request

SHAPES = EngineShapes(
    num_slots=2,
    num_pages=32,
    page_size=4,
    max_model_len=64,
    max_prefill_tokens=8,
    prefill_seqs=(1,),
    has_slot_cache=True,
)
ALONE = Bucket(1, 8, 16)


class Prefills:
    """Prefill steps of a scheduler, and the copies around them."""

    def __init__(self):
        self.scheduler = Scheduler(num_slots=2, num_pages=32, page_size=4, chunking=Chunking(SHAPES.prefill))
        self.row = PrefillRow(SHAPES)

    def step(self) -> tuple[list[PageCopy], list[PageCopy]]:
        """Plan a step; return the copies before and after it."""
        plan = self.scheduler.plan(StepKind.PREFILL)
        copies = self.row.copies_around(plan, ALONE)
        self.scheduler.commit(plan, [1])
        return copies


def test_chunks_of_one_prompt_stay_in_the_row_and_are_inserted_one_by_one():
    prefills = Prefills()
    sequence = prefills.scheduler.add(make_request("a", prompt_len=21))
    copies = [prefills.step() for _ in range(3)]
    assert [before for before, _ in copies] == [[], [], []]
    pages = tuple(sequence.pages)
    inserts = [PageCopy(CopyKind.INSERT, 0, first, pages[first : first + 2]) for first in (0, 2, 4)]
    assert [after for _, after in copies] == [[insert] for insert in inserts]


def test_a_prompt_that_comes_back_to_the_row_is_extracted_from_its_slot_first():
    prefills = Prefills()
    first = prefills.scheduler.add(make_request("first", prompt_len=20))
    prefills.step()
    prefills.scheduler.add(make_request("second", prompt_len=16))
    assert prefills.step()[0] == []  # the second begins
    [extract], [insert] = prefills.step()
    assert extract == PageCopy(CopyKind.EXTRACT, 0, 0, tuple(first.pages[:2]))
    assert insert == PageCopy(CopyKind.INSERT, 0, 2, tuple(first.pages[2:4]))


def test_a_page_in_whose_middle_a_step_begins_is_copied_whole():
    prefills = Prefills()
    prefills.scheduler.add(make_request("a", prompt_len=13))
    prefills.step()
    [planned] = prefills.scheduler.plan(StepKind.PREFILL).seqs
    from_ten = Plan(StepKind.PREFILL, (replace(planned, start=10, token_ids=planned.token_ids[2:]),))
    [extract], [insert] = prefills.row.copies_around(from_ten, ALONE)
    assert (extract.first_page, len(extract.pages)) == (0, 3)
    assert (insert.first_page, len(insert.pages)) == (2, 2)


def test_a_cached_prefix_is_extracted_from_the_slot_that_it_was_restored_to():
    prefills = Prefills()
    prefills.scheduler.add(make_request("a", prompt_len=9))
    prefills.step()
    prefills.step()
    second = prefills.scheduler.add(make_request("another", prompt_len=10))
    [extract], _ = prefills.step()
    assert extract == PageCopy(CopyKind.EXTRACT, second.slot, 0, tuple(second.pages[:2]))


def test_a_step_that_could_hold_several_prompts_computes_even_one_in_its_slot():
    prefills = Prefills()
    prefills.scheduler.add(make_request("a", prompt_len=13))
    plan = prefills.scheduler.plan(StepKind.PREFILL)
    several = Bucket(4, 2, 16)
    assert prefills.row.copies_around(plan, several) == ([], [])
