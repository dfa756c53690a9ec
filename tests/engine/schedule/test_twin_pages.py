"""What a draft model knows of sequences: never more than it has computed, and all that it has."""

import random

from service.engine.request import Request
from service.engine.schedule.pages import extend_keys, root_key
from service.engine.schedule.sequence import Sequence
from service.engine.schedule.twin_pages import TwinPages

PAGE = 4


def running(prompt, pages, *, salt=b"", chunk=0):
    sequence = Sequence(Request("a", tuple(prompt), 99), 0, root_key(salt))
    sequence.pages, sequence.last_chunk, sequence.slot = list(pages), chunk, 0
    extend_keys(sequence.page_keys, sequence.root_key, sequence.known_ids, PAGE)
    return sequence


def test_a_prefix_is_found_where_its_twins_were_written_for_the_same_text_and_no_other():
    twins = TwinPages(PAGE)
    first = running(range(13), (7, 3, 5, 1))
    assert twins.num_computed(first) == 0
    twins.write(first, 0, 9)
    assert twins.num_computed(first) == 9
    assert twins.num_computed(running(range(13), (7, 3, 5, 2))) == 8
    assert twins.num_computed(running(range(9), (7, 3, 2))) == 8
    assert twins.num_computed(running(range(8), (7, 3, 2))) == 7, "the last token is left to compute"
    assert twins.num_computed(running((*range(5), 9, 9, 9), (7, 3, 2))) == 4
    assert twins.num_computed(running(range(13), (7, 3, 5, 1), salt=b"x")) == 0
    assert twins.num_computed(running(range(13), (3, 7, 5, 1))) == 0
    other = running(range(20, 29), (3, 8, 9))
    twins.num_computed(other)
    twins.write(other, 0, 2)  # into a page that the first has lost
    assert twins.num_computed(running(range(13), (7, 3, 5, 2))) == 4


def test_drafts_that_came_are_computed_and_others_are_not():
    twins, sequence = TwinPages(PAGE), running(range(6), (0, 1, 2, 3))
    twins.num_computed(sequence)
    twins.write(sequence, 0, 6, [60, 61, 62])
    for token_id in (60, 61, 9, 10):
        sequence.append(token_id)
    assert twins.num_computed(sequence) == 8
    assert twins.num_computed(sequence) == 8
    twins.write(sequence, 8, 10, [11])
    sequence.append(11)
    assert twins.num_computed(sequence) == 11


def test_a_sequence_that_lost_its_pages_begins_anew_and_one_that_ended_leaves_its_whole_pages():
    twins, sequence = TwinPages(PAGE), running(range(6), (0, 1, 2))
    twins.num_computed(sequence)
    twins.write(sequence, 0, 6, [6, 7, 8])
    for token_id in (6, 7, 9):
        sequence.append(token_id)
    sequence.pages, sequence.last_chunk = [4, 5, 6], 1
    assert twins.num_computed(sequence) == 0
    twins.write(sequence, 0, 8)
    twins.forget(sequence)
    twins.forget(sequence)
    assert twins.num_computed(running((*range(8), 9), (4, 5, 8))) == 8


def test_what_is_taken_for_computed_always_is():
    """Sequences come, grow, lose their pages and end at random, beside a record of what each position holds."""
    draw, twins = random.Random(1), TwinPages(PAGE)
    written: dict[tuple[int, int], tuple[int, ...]] = {}  # by page and place: the text up to there
    free, open_, num_found, chunk = list(range(40)), [], 0, 0
    beginnings = [[draw.randrange(9) for _ in range(20)] for _ in range(3)]
    for _ in range(3_000):
        if len(free) > 12 and draw.random() < 0.3:
            prompt = [*draw.choice(beginnings)[: draw.randrange(3, 20)], draw.randrange(9)]
            chunk += 1
            open_.append(running(prompt, [free.pop(draw.randrange(len(free))) for _ in range(8)], chunk=chunk))
        if not open_:
            continue
        sequence = draw.choice(open_)
        if len(sequence.known_ids) > 26 or draw.random() < 0.1:
            twins.forget(sequence)
            free += sequence.pages
            open_.remove(sequence)
            continue
        known = sequence.known_ids
        start = twins.num_computed(sequence)
        num_found += start
        for position in range(start):
            at = written[sequence.pages[position // PAGE], position % PAGE]
            assert at == tuple(known[: position + 1])
        drafted = [draw.randrange(9) for _ in range(draw.randrange(3))]
        text = [*known, *drafted]
        for position in range(start, len(text)):
            written[sequence.pages[position // PAGE], position % PAGE] = tuple(text[: position + 1])
        twins.write(sequence, start, len(known), drafted)
        for token_id in [*drafted[: draw.randrange(3)], draw.randrange(9)]:
            sequence.append(token_id)
    assert num_found > 10_000


def test_a_head_reads_anew_what_was_drafted_and_what_depends_on_the_page_that_follows():
    twins, first = TwinPages(PAGE, shift=1), running(range(13), (7, 3, 5, 1))
    assert twins.num_computed(first) == 0
    twins.write(first, 0, 11, [60, 61])
    for token_id in (60, 61):
        first.append(token_id)
    assert twins.num_computed(first) == 11, "drafts were made of its own results"
    assert twins.num_computed(running(range(13), (7, 3, 5, 2))) == 7, "the last of a page read a token of another one"
    twins.forget(first)
    other = running(range(20, 29), (8, 3, 9))
    twins.num_computed(other)
    twins.write(other, 0, 3, [1, 2])  # drafts lie in a page that the first has lost
    assert twins.num_computed(running(range(13), (7, 3, 5, 2))) == 3
