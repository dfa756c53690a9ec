from hypothesis import given
from hypothesis import strategies as st

from service.text.detokenizer import StopRule, StopStrings

stop_lists = st.lists(st.text("abc", min_size=1, max_size=5), min_size=0, max_size=4)


def cut(text, stops):
    """What is left of a text that comes character by character, searched as a whole each time."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


def cutting(stops, **options):
    return StopStrings(StopRule(tuple(stops), **options))


def run(pieces, stops, **options):
    cutter = cutting(stops, **options)
    sent = ""
    for piece in pieces:
        text, is_stopped = cutter.push(piece)
        sent += text
        if is_stopped:
            return sent, True
    return sent + cutter.flush(), False


@given(pieces=st.lists(st.text("abc", max_size=4), max_size=10), stops=stop_lists)
def test_the_cut_does_not_depend_on_the_pieces(pieces, stops):
    assert run(pieces, stops) == cut("".join(pieces), stops)


@given(text=st.text("abc", max_size=20), stops=stop_lists)
def test_nothing_sent_is_ever_taken_back(text, stops):
    cutter = cutting(stops)
    sent = ""
    for character in text:
        piece, is_stopped = cutter.push(character)
        sent += piece
        assert cut(text, stops)[0].startswith(sent)
        if is_stopped:
            return


def test_a_possible_beginning_is_held_back_and_no_more():
    cutter = cutting(["###"])
    assert cutter.push("a#") == ("a", False)
    assert cutter.push("#b") == ("##b", False)
    assert cutter.push("##") == ("", False)
    assert cutter.flush() == "##"
    assert cutter.flush() == ""


def test_a_stop_string_across_pieces_is_cut_with_all_that_follows():
    cutter = cutting(["\n\nUser:"])
    assert cutter.push("Yes.\n") == ("Yes.", False)
    assert cutter.push("\nUser: more") == ("", True)


def test_text_without_stop_strings_is_not_held():
    assert cutting([]).push("text") == ("text", False)


def test_text_that_cannot_begin_a_stop_string_is_not_held_even_if_its_first_character_does():
    cutter = cutting(["abc"])
    assert cutter.push("ax") == ("ax", False)
    assert cutter.push("ab") == ("", False)
    assert cutter.push("x") == ("abx", False)


@given(pieces=st.lists(st.text("abc", max_size=4), max_size=10), stops=stop_lists)
def test_a_text_that_keeps_its_stop_string_has_just_that_more(pieces, stops):
    text, is_stopped = run(pieces, stops, keeps_stop=True)
    without, is_cut = run(pieces, stops)
    assert is_stopped == is_cut
    assert text.startswith(without)
    assert (text[len(without) :] in stops) if is_stopped else text == without
