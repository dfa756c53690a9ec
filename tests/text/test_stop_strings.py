from hypothesis import given
from hypothesis import strategies as st

from service.text.detokenizer import StopRule, StopStrings

stop_lists = st.lists(st.text("abc", min_size=1, max_size=5), min_size=0, max_size=4)


def cut(text, stops):
    """What is left of a text that comes character by character, searched as a whole each time."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


def cutting(stops, **options):
    return StopStrings(StopRule(tuple(stops), **options))


def run(pieces, stops, **options):
    cutter = cutting(stops, **options)
    sent = ""
    for piece in pieces:
        text, stop = cutter.push(piece)
        sent += text
        if stop is not None:
            return sent, stop
    return sent + cutter.flush(), None


@given(pieces=st.lists(st.text("abc", max_size=4), max_size=10), stops=stop_lists)
def test_the_cut_does_not_depend_on_the_pieces(pieces, stops):
    assert run(pieces, stops) == cut("".join(pieces), stops)


@given(text=st.text("abc", max_size=20), stops=stop_lists)
def test_nothing_sent_is_ever_taken_back(text, stops):
    cutter = cutting(stops)
    sent = ""
    for character in text:
        piece, stop = cutter.push(character)
        sent += piece
        assert cut(text, stops)[0].startswith(sent)
        if stop is not None:
            return


def test_a_possible_beginning_is_held_back_and_no_more():
    cutter = cutting(["###"])
    assert cutter.push("a#") == ("a", None)
    assert cutter.push("#b") == ("##b", None)
    assert cutter.push("##") == ("", None)
    assert cutter.flush() == "##"
    assert cutter.flush() == ""


def test_a_stop_string_across_pieces_is_cut_with_all_that_follows():
    cutter = cutting(["\n\nUser:"])
    assert cutter.push("Yes.\n") == ("Yes.", None)
    assert cutter.push("\nUser: more") == ("", "\n\nUser:")


def test_text_without_stop_strings_is_not_held():
    assert cutting([]).push("text") == ("text", None)


def test_text_that_cannot_begin_a_stop_string_is_not_held_even_if_its_first_character_does():
    cutter = cutting(["abc"])
    assert cutter.push("ax") == ("ax", None)
    assert cutter.push("ab") == ("", None)
    assert cutter.push("x") == ("abx", None)


@given(pieces=st.lists(st.text("abc", max_size=4), max_size=10), stops=stop_lists)
def test_a_text_that_keeps_its_stop_string_has_just_that_more(pieces, stops):
    text, stop = run(pieces, stops, keeps_stop=True)
    without, same_stop = run(pieces, stops)
    assert stop == same_stop
    assert text == without + (stop or "")
