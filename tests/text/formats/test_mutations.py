"""Answers that no model should write: marks that are cut, doubled, nested, reordered or another family's."""

import random
import re

import pytest

from service.text.formats.families import FAMILIES
from service.text.formats.parts import CallStart, Content, Thought
from tests.text.formats.test_reader import read, tokens
from tests.text.formats.vectors import ANSWERS

MARKS = sorted({mark for form in FAMILIES for mark in form.marks})


def mutated(rng, answer):
    """Return pieces of an answer, its marks and the text between them, of which some are lost, doubled or elsewhere."""
    marks = "|".join(map(re.escape, sorted(answer.form.marks, key=len, reverse=True)))
    pieces = [piece for piece in re.split(f"({marks})", answer.text) if piece] if marks else [answer.text]
    for _ in range(rng.randrange(1, 5)):
        place, other = rng.randrange(len(pieces)), rng.randrange(len(pieces) + 1)
        match rng.randrange(6):
            case 0:
                pieces[place] = pieces[place][: rng.randrange(len(pieces[place]) + 1)]
            case 1:
                pieces.insert(other, pieces[place])
            case 2:
                pieces.insert(other, pieces.pop(place))
            case 3:
                pieces[place:place] = pieces[: rng.randrange(len(pieces))]
            case 4:
                pieces.insert(other, rng.choice(MARKS))
            case _:
                pieces = pieces[: other or 1]
    return "".join(pieces)


def check(seed):
    rng = random.Random(seed)
    answer = rng.choice(ANSWERS)
    text = mutated(rng, answer)
    ids = {mark: index for index, mark in enumerate(answer.form.marks)}
    whole, _ = read(answer.form, tokens(text, ids, 10_000), ids, begins=answer.begins)
    in_pieces, _ = read(answer.form, tokens(text, ids, rng.randrange(1, 4)), ids, begins=answer.begins)
    assert in_pieces == whole, (seed, text)
    shown = [part.text for part in whole if isinstance(part, Content | Thought)]
    leaks = [mark for mark in ids for piece in shown if mark in piece]
    assert not leaks, (seed, answer.checkpoint, text, whole)
    assert [part.index for part in whole if isinstance(part, CallStart)] == sorted(
        part.index for part in whole if isinstance(part, CallStart)
    )
    as_text, _ = read(answer.form, [(text,)], begins=answer.begins)
    assert read(answer.form, [(character,) for character in text], begins=answer.begins)[0] == as_text, (seed, text)


def test_no_mark_is_shown_and_no_order_of_marks_is_a_fault():
    for seed in range(400):
        check(seed)


@pytest.mark.slow
def test_no_mark_is_shown_in_20000_answers():
    for seed in range(1000, 21_000):
        check(seed)
