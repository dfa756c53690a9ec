"""Stop strings, and the tokens of a content, against an oracle that sees the whole text at once."""

import random
from dataclasses import replace

import pytest

from service.text.detokenizer import StopRule, StopStrings
from service.text.formats.families import NO_CALLS
from service.text.formats.parts import CallStart, Content, Thought
from service.text.formats.reader import AnswerReader
from service.text.visible import VisibleText
from tests.text.formats.samples import HERMES, LLAMA, MISTRAL, QWEN_CODER

CALLS = {
    HERMES: '<tool_call>\n{"name": "look", "arguments": {"a": "Ulm <x"}}\n</tool_call>',
    QWEN_CODER: "<tool_call>\n<function=look>\n<parameter=a>\nUlm\n</parameter>\n</function>\n</tool_call>",
    MISTRAL: '[TOOL_CALLS][{"name": "look", "arguments": {"a": "Ulm"}}]',
    LLAMA: '{"name": "look", "parameters": {"a": "Ulm"}}',
    None: "",
}
WORDS = ["Ulm", "<", "</think", "<tool_call", "[TOOL", " ", "\n", "é", "a", "ab", "aa", "look", '"', "{"]


def random_text(rng, form, is_open):
    thought = "".join(rng.choices(WORDS, k=rng.randrange(5))).replace("</think", "")
    thinking = rng.choice(["", f"{'' if is_open else '<think>\n'}{thought}</think>\n\n"])
    content = "".join(rng.choices(WORDS, k=rng.randrange(8)))
    text = thinking + content + rng.choice([CALLS[form], ""])
    return text[: rng.randrange(len(text) + 1)] if rng.random() < 0.4 else text


def reader_of(form, thinks, is_open):
    form = form or NO_CALLS
    form = form if thinks else replace(form, thinking=())
    return AnswerReader(form, text_names={"look": {"a"}}, begins=Thought if is_open else None)


def text_of(parts, kind):
    return "".join(part.text for part in parts if isinstance(part, kind))


def cut(content, stops, *, keeps_stop):
    """Return the content up to the stop string that is complete first, and the longest of those there."""
    for end in range(1, len(content) + 1):
        if ending := [stop for stop in stops if content[:end].endswith(stop)]:
            stop = max(ending, key=len)
            return content[: end if keeps_stop else end - len(stop)], stop
    return content, None


def check(seed):
    rng = random.Random(seed)
    form, thinks, is_open = rng.choice(list(CALLS)), rng.random() < 0.6, rng.random() < 0.3
    is_open = is_open and thinks
    text = random_text(rng, form, is_open)
    whole_reader = reader_of(form, thinks, is_open)
    whole = [*whole_reader.push(text), *whole_reader.flush()]
    stops = set()
    for _ in range(rng.randrange(4)):
        begin = rng.randrange(len(text) + 1)
        stops.add(text[begin : begin + rng.randrange(1, 5)] or rng.choice(WORDS))
    stops |= set(rng.sample(WORDS, k=rng.randrange(2)))
    keeps_stop = rng.random() < 0.3
    pieces = []
    while text:
        size = rng.choice([1, 1, 2, 3, 8])
        pieces.append(text[:size])
        text = text[size:]
    visible = VisibleText(reader_of(form, thinks, is_open), StopStrings(StopRule(tuple(stops), keeps_stop)))
    parts, tokens = [], []
    for piece in pieces:
        parts += visible.push(piece, piece)
        tokens += visible.take_tokens()
        if visible.stop is not None:
            break
    if visible.stop is None:
        parts += visible.flush()
        tokens += visible.take_tokens()
    expected, stop = cut(text_of(whole, Content), stops, keeps_stop=keeps_stop)
    assert (text_of(parts, Content), visible.stop) == (expected, stop)
    if stop is None:
        assert text_of(parts, Thought) == text_of(whole, Thought)
        calls = [part for part in whole if isinstance(part, CallStart)]
        assert [part for part in parts if isinstance(part, CallStart)] == calls
    # Nothing of the content is in no token, and no token has nothing of it.
    spoken = "".join(tokens)
    assert expected in spoken
    if all(len(piece) == 1 for piece in pieces):
        assert spoken == expected


def test_stop_strings_apply_to_what_is_seen():
    for seed in range(150):
        check(seed)


@pytest.mark.slow
def test_stop_strings_apply_to_what_is_seen_of_30000_answers():
    for seed in range(1000, 31_000):
        check(seed)


def pushed(pieces, stops, **options):
    visible = VisibleText(None, StopStrings(StopRule(tuple(stops))), **options)
    parts = []
    for piece in pieces:
        parts += visible.push(piece, piece) if visible.stop is None else []
    return text_of(parts + ([] if visible.stop else visible.flush()), Content), visible.stop


def test_a_stop_string_waits_for_so_many_tokens():
    assert pushed(["a", "b", "a", "b"], ["b"]) == ("a", "b")
    assert pushed(["a", "b", "a", "b"], ["b"], min_tokens=2) == ("a", "b")
    assert pushed(["a", "b", "a", "b"], ["b"], min_tokens=3) == ("aba", "b")
    assert pushed(["a", "b", "a", "b"], ["b"], min_tokens=5) == ("abab", None)
    assert pushed(["a", "b", "a", "b"], ["ba"], min_tokens=3) == ("a", "ba")


def test_long_stops_that_begin_alike_take_time_in_proportion():
    stops = ["a" * 1000 + chr(0x100 + number) for number in range(16)]
    assert pushed(["a" * 7] * 1500, stops)[0] == "a" * 10_500
