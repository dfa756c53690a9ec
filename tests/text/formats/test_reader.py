"""Answers of every family, whole and cut at every character, with marks that are tokens and that are text."""

import json
import re
from dataclasses import replace

import pytest

from service.text.formats.parts import Arguments
from service.text.formats.reader import AnswerReader
from tests.text.formats.vectors import ANSWERS, TEXTS, joined


def tokens(text, ids, size=1):
    """Return a text as tokens: marks, and so many characters between them."""
    marks = "|".join(map(re.escape, sorted(ids, key=len, reverse=True)))
    for piece in re.split(f"({marks})", text) if marks else [text]:
        if piece in ids:
            yield piece, ids[piece]
        else:
            yield from ((piece[at : at + size], None) for at in range(0, len(piece), size))


def read(form, pieces, ids=None, **options):
    reader = AnswerReader(form, ids or {}, text_names=TEXTS, **options)
    parts = [part for piece in pieces for part in reader.push(*piece)]
    return joined(parts + reader.flush()), reader


def comparable(parts):
    """Return parts with the values of arguments, if they are whole."""
    return [replace(part, text=json.loads(part.text)) if isinstance(part, Arguments) else part for part in parts]


@pytest.mark.parametrize("has_tokens", [True, False], ids=["tokens", "text"])
@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(
            answer,
            id=f"{answer.checkpoint}-{answer.name}",
            marks=() if answer.name in ("calls", "reasoning and calls") else pytest.mark.grid,
        )
        for answer in ANSWERS
    ],
)
def test_an_answer_has_its_parts_wherever_it_is_cut(answer, has_tokens):
    ids = {mark: index for index, mark in enumerate(answer.form.marks)} if has_tokens else {}
    options = {"ids": ids, "begins": answer.begins}
    whole, reader = read(answer.form, tokens(answer.text, ids, 10_000), **options)
    assert comparable(whole) == comparable(answer.parts)
    assert not reader.is_inside_call
    for size in (1, 2, 3, 5):
        assert read(answer.form, tokens(answer.text, ids, size), **options)[0] == whole
    if not has_tokens:
        for cut in range(len(answer.text)):
            pieces = (answer.text[:cut],), (answer.text[cut:],)
            assert read(answer.form, pieces, **options)[0] == whole
