import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.text.formats.families import NO_CALLS
from service.text.formats.parts import Content, Thought
from service.text.formats.reader import AnswerReader

pieces = st.lists(st.sampled_from(["<think>", "</think>", "<", "/", "think>", "\n", " ", "a", "b <", "é", "</thin"]))


def reader(*, is_open, **options):
    return AnswerReader(NO_CALLS, begins=Thought if is_open else None, **options)


def split(texts, *, is_open=False):
    parser = reader(is_open=is_open)
    parts = [part for text in texts for part in parser.push(text)] + parser.flush()
    assert all(part.text for part in parts)
    return tuple("".join(part.text for part in parts if isinstance(part, kind)) for kind in (Thought, Content))


@pytest.mark.parametrize(
    ("text", "is_open", "expected"),
    [
        ("<think>\nI see.\n</think>\n\nYes.\n", False, ("I see.", "Yes.\n")),
        ("I see.\n</think>\n\nYes.", True, ("I see.", "Yes.")),
        ("\nI see.\n</think>Yes.", True, ("I see.", "Yes.")),
        ("<think>\n\n</think>\n\nYes.", False, ("", "Yes.")),
        (" \n<think>a </think> b", False, ("a", "b")),
        (" Yes. <think>no</think>", False, ("no", " Yes. ")),
        ("<think>cut off  ", False, ("cut off  ", "")),
        ("<think>a </thin", False, ("a </thin", "")),
        ("<thi", False, ("", "<thi")),
        ("  ", False, ("", "  ")),
        ("", True, ("", "")),
        ("a</think>b</think>c", True, ("a", "bc")),
        ("</think>", True, ("", "")),
    ],
)
def test_a_text_is_split_at_its_tags(text, is_open, expected):
    assert split([text], is_open=is_open) == expected
    assert split(list(text), is_open=is_open) == expected


@given(pieces, st.booleans())
def test_where_a_text_is_cut_changes_nothing(texts, is_open):
    assert split(texts, is_open=is_open) == split(["".join(texts)], is_open=is_open)


def test_white_space_of_a_grammar_stays_with_the_answer():
    parser = reader(is_open=True, keeps_space=True)
    assert parser.push(" I see.\n</think>") == [Thought("I see.")]
    assert parser.push("\n Yes") == [Content("\n Yes")]


def test_thinking_arrives_before_it_ends():
    parser = reader(is_open=False)
    assert parser.push("<think>I ") == [Thought("I")]
    assert parser.push("see") == [Thought(" see")]
    assert parser.push("\n</think>\n") == []
    assert parser.push("\nYes") == [Content("Yes")]


@pytest.mark.parametrize(
    ("texts", "is_open", "expected"),
    [
        (["<think>", "Hm", ".", "</think>", "Yes", "."], False, 4),
        (["\n", "<th", "ink>", "", "Hm", "</", "think>Yes", "."], False, 7),
        (["Hm", "</think>", "Yes", "</think>"], True, 2),
        (["<think>", "Hm"], False, 2),
        (["<think"], False, 0),
        (["Yes", "<think>", "no"], False, 2),
        ([], True, 0),
    ],
)
def test_the_tokens_of_the_thinking_are_those_up_to_its_closing_tag(texts, is_open, expected):
    parser = reader(is_open=is_open)
    counts = []
    for text in texts:
        parser.push(text)
        counts.append(parser.num_thinking)
    assert parser.num_thinking == expected
    assert counts == sorted(counts)
