"""Media in prompts: held until their rows are computed with, encoded once, and part of the keys of pages."""

import random

import numpy as np
import pytest

from service.engine.request import FinishReason, Medium, PlacedMedium
from service.engine.shapes import RowShapes, StepKind
from tests.engine.schedule.scheduling import make_request, make_scheduler, names, step

PIXELS = np.zeros((1, 1, 3), np.uint8)
NUM_PARTS, NUM_MEDIA = 2, 3
NUM_ROWS = 6


def seeing_scheduler(**sizes):
    num_places = sizes.pop("num_media", NUM_MEDIA)
    media = RowShapes(num_places, NUM_ROWS, (NUM_ROWS,), NUM_PARTS, (1, 1, 3))
    return make_scheduler(**{"num_pages": 40, "media": media, "encoder_parts": NUM_PARTS} | sizes)


def sees(name, *digests, first=2, gap=1, prompt_len=24, **options):
    """Return a request that shows media, each of `NUM_ROWS` rows, from a position on."""
    media = tuple(
        PlacedMedium(Medium(digest, PIXELS, NUM_ROWS), first + number * (NUM_ROWS + gap))
        for number, digest in enumerate(digests)
    )
    return make_request(name, prompt_len=prompt_len, media=media, **options)


def finish(scheduler, request=None):
    sequence = None if request is None else scheduler.add(request)
    parts = 0
    while not scheduler.is_idle:
        plan, _ = step(scheduler)
        parts += plan.part is not None
        scheduler.check_integrity()
    return parts if sequence is None else (sequence, parts)


def test_the_text_before_a_medium_is_computed_while_it_is_encoded():
    scheduler = seeing_scheduler()
    sequence = scheduler.add(sees("a", b"1", first=10))
    kinds = []
    while sequence.is_prefilling or sequence.slot < 0:
        plan, _ = step(scheduler)
        kinds.append((plan.kind, sequence.num_computed))
    assert kinds[:2] == [(StepKind.PREFILL, 8), (StepKind.ENCODE, 8)]
    assert (StepKind.PREFILL, 8) in kinds
    assert [kind for kind, _ in kinds].count(StepKind.ENCODE) == NUM_PARTS


def test_each_chunk_has_the_rows_of_the_media_that_it_touches():
    scheduler = seeing_scheduler()
    scheduler.add(sees("a", b"1", b"2", first=2, gap=0, prompt_len=17))
    touched = []
    while not scheduler.is_idle:
        plan, _ = step(scheduler)
        touched += [(p.start, [(rows.start, rows.end) for rows in p.rows]) for p in plan.seqs if p.token_ids]
    assert touched == [(0, [(2, 8)]), (8, [(8, 14)]), (16, [])]


def test_between_two_steps_of_others_runs_one_part():
    scheduler = seeing_scheduler(num_slots=3)
    scheduler.add(make_request("t", max_tokens=20))
    step(scheduler)
    scheduler.add(sees("a", b"1", b"2"))
    kinds = [step(scheduler)[0].kind for _ in range(9)]
    encoded = [number for number, kind in enumerate(kinds) if kind is StepKind.ENCODE]
    assert len(encoded) == 2 * NUM_PARTS
    assert min(np.diff(encoded)) > 1


def test_a_medium_is_encoded_once_while_its_rows_are_there():
    scheduler = seeing_scheduler(num_slots=3)
    for name in "abc":
        scheduler.add(sees(name, b"1", b"2", b"1"))
    assert finish(scheduler) == 2 * NUM_PARTS
    _, parts = finish(scheduler, sees("d", b"2", b"1"))
    assert parts == 0
    for salt in (b"one", b"two"):
        _, parts = finish(scheduler, sees("e", b"1", cache_salt=salt))
        assert parts == NUM_PARTS


def test_media_whose_pages_are_cached_are_not_encoded_again():
    scheduler = seeing_scheduler(num_media=1)
    finish(scheduler, sees("a", b"1"))
    finish(scheduler, sees("b", b"2"))
    again, parts = finish(scheduler, sees("a", b"1"))
    assert (again.num_cached_tokens, parts) == (20, 0)
    other_end, parts = finish(scheduler, sees("a", b"1", prompt_len=16))
    assert (other_end.num_cached_tokens, parts) == (12, 0)


@pytest.mark.parametrize(("other", "first"), [(b"2", 10), (b"1", 11)])
def test_another_medium_or_place_shares_the_pages_before_it_alone(other, first):
    scheduler = seeing_scheduler()
    finish(scheduler, sees("a", b"1", first=10))
    sequence, _ = finish(scheduler, sees("a", other, first=first))
    assert sequence.num_cached_tokens == 8


def test_a_prompt_of_more_media_than_have_places_waits_for_them_without_holding_any():
    scheduler = seeing_scheduler(num_slots=2, num_media=2)
    sequences = [scheduler.add(sees(name, name.encode() + b"1", name.encode() + b"2")) for name in "ab"]
    assert finish(scheduler) == 4 * NUM_PARTS
    assert {sequence.finish_reason for sequence in sequences} == {FinishReason.LENGTH}


def test_rows_are_not_found_again_after_a_sequence_failed():
    scheduler = seeing_scheduler()
    scheduler.add(sees("a", b"1", prompt_len=8, max_tokens=1))
    for token_id in (0, 0, -1):
        step(scheduler, token_id)
    scheduler.check_integrity()
    _, parts = finish(scheduler, sees("a", b"1"))
    assert parts == NUM_PARTS


def test_nothing_is_lost_whatever_is_aborted_or_preempted():
    chance, scheduler, open_ones = random.Random(38), seeing_scheduler(num_slots=3, num_pages=20), []
    for number in range(400):
        if chance.random() < 0.3:
            digests = [bytes([chance.randrange(6)]) for _ in range(chance.randrange(4))]
            name, length = chance.choice("abcd"), chance.randrange(22, 40)
            open_ones.append(
                scheduler.add(sees(f"{name}{number}", *digests, gap=chance.randrange(1), prompt_len=length))
            )
        if open_ones and chance.random() < 0.15:
            scheduler.abort(open_ones.pop(chance.randrange(len(open_ones))))
        if not scheduler.is_idle:
            step(scheduler, chance.choice((7, 7, 7, -1)))
        scheduler.check_integrity()
    finish(scheduler)
    assert scheduler.places.num_available == NUM_MEDIA
    assert scheduler.num_preemptions > 0


def test_others_run_while_a_prompt_waits_for_its_rows():
    scheduler = seeing_scheduler(num_slots=2)
    scheduler.add(sees("a", b"1", first=0))
    scheduler.add(make_request("t"))
    assert "t" in "".join(names(step(scheduler)[0]) for _ in range(2))


WHOLE = 10  # rows of a medium that no step cuts, of which a row of a step holds four


def whole_scheduler(**sizes):
    media = RowShapes(6, WHOLE, (WHOLE,), NUM_PARTS, (1, 1, 3), is_whole=True)
    sizes = {"num_pages": 60, "max_tokens": 16, "media": media, "encoder_parts": NUM_PARTS} | sizes
    return make_scheduler(**sizes)


def shows_whole(name, starts, prompt_len, **options):
    """Return a request with media that begin at some positions."""
    media = tuple(
        PlacedMedium(Medium(name[0].encode() + bytes([number]), PIXELS, WHOLE), start)
        for number, start in enumerate(starts)
    )
    return make_request(name, prompt_len=prompt_len, media=media, **options)


def chunks_of(scheduler):
    """Run to the end, and return the chunks of each request, none of which cuts a medium."""
    found = {}
    while not scheduler.is_idle:
        plan, _ = step(scheduler)
        scheduler.check_integrity()
        for planned in plan.seqs:
            if planned.token_ids:
                end = planned.start + len(planned.token_ids)
                media = planned.sequence.request.media
                assert not [placed for placed in media if placed.start < end < placed.end]
                found.setdefault(planned.sequence.request.id, []).append((planned.start, end))
    return found


@pytest.mark.parametrize(
    ("starts", "prompt_len", "expected"),
    [
        ([0], 12, [(0, 12)]),
        ([0], 24, [(0, 16), (16, 24)]),
        ([6], 30, [(0, 4), (4, 20), (20, 30)]),  # a step of sixteen tokens would end within it
        ([2, 13], 30, [(0, 12), (12, 28), (28, 30)]),
        ([1, 12, 23], 40, [(0, 12), (12, 22), (22, 36), (36, 40)]),  # the second and the third share a row
    ],
)
def test_a_medium_whose_rows_see_each_other_is_computed_in_one_step(starts, prompt_len, expected):
    scheduler = whole_scheduler()
    scheduler.add(shows_whole("a", starts, prompt_len))
    assert chunks_of(scheduler)["a"] == expected


def test_beside_sequences_that_decode_a_medium_is_one_step_though_it_has_more_tokens_than_they_wait_for():
    scheduler = whole_scheduler(num_slots=3, step_cost_tokens=1)
    scheduler.add(make_request("t", max_tokens=40))
    step(scheduler)
    scheduler.add(shows_whole("a", [5, 17], 40))
    found = chunks_of(scheduler)["a"]
    sizes = {end - start for start, end in found if start in {4, 15, 16}}
    assert max(sizes) >= WHOLE
    assert sum(end - start for start, end in found) == 40


def test_a_medium_that_the_rest_of_a_step_does_not_hold_is_the_first_of_a_later_one():
    scheduler = whole_scheduler(num_slots=3)
    for name in ("a", "b"):
        scheduler.add(shows_whole(name, [1], 14))
    found = chunks_of(scheduler)
    assert found == {"a": [(0, 14)], "b": [(0, 14)]}


def test_no_medium_is_cut_whatever_arrives_leaves_or_loses_its_pages():
    chance = random.Random(40)
    scheduler, open_ones = whole_scheduler(num_slots=3, num_pages=22, step_cost_tokens=2), []
    num_computed = 0
    for number in range(500):
        if chance.random() < 0.25:
            starts, position = [], 0
            for _ in range(chance.randrange(4)):
                position += chance.randrange(1, 9)
                starts.append(position)
                position += WHOLE
            length = position + chance.randrange(1, 20)
            open_ones.append(scheduler.add(shows_whole(f"{chance.choice('abc')}{number}", starts, length)))
        if open_ones and chance.random() < 0.1:
            scheduler.abort(open_ones.pop(chance.randrange(len(open_ones))))
        if not scheduler.is_idle:
            plan, _ = step(scheduler)
            for planned in plan.seqs:
                end = planned.start + planned.num_tokens
                media = planned.sequence.request.media
                assert not [placed for placed in media if placed.start < end < placed.end]
                num_computed += len(planned.rows)
        scheduler.check_integrity()
    chunks_of(scheduler)
    assert scheduler.num_preemptions > 0
    assert num_computed > 100
