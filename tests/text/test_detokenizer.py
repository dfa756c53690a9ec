import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.text.detokenizer import WINDOW_TOKENS, ByteDetokenizer, WindowDetokenizer, detokenizer_for
from service.text.tokenizer import Tokenizer
from tests.text.small_tokenizers import byte_level, metaspace, outside_metaspace

FAMILIES = {"byte_level": Tokenizer(byte_level()), "metaspace": Tokenizer(metaspace())}
FAMILIES["outside"] = Tokenizer(outside_metaspace())

texts = st.text(
    st.one_of(st.characters(exclude_categories=["Cs"]), st.sampled_from("athe é\ufffd🌍👩‍👧世")), max_size=40
)


def pieces(tokenizer, token_ids, context_ids=()):
    detokenizer = detokenizer_for(tokenizer, context_ids)
    return [detokenizer.push([token_id]) for token_id in token_ids]


@pytest.mark.parametrize("family", FAMILIES)
@given(text=texts)
def test_the_pieces_of_any_text_are_the_text(family, text):
    tokenizer = FAMILIES[family]
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    got = pieces(tokenizer, token_ids)
    assert "".join(got) == tokenizer.decode(token_ids)
    assert "".join(got).count("\ufffd") == text.count("\ufffd")


@given(text=texts, data=st.data())
def test_several_tokens_at_once_give_the_same_text(text, data):
    tokenizer = FAMILIES["byte_level"]
    token_ids = tokenizer.encode(text, add_special_tokens=False)
    detokenizer = detokenizer_for(tokenizer)
    got = ""
    while token_ids:
        count = data.draw(st.integers(1, len(token_ids)))
        got, token_ids = got + detokenizer.push(token_ids[:count]), token_ids[count:]
    assert got == text


@given(token_ids=st.lists(st.integers(0, 700), max_size=30))
def test_random_tokens_of_the_byte_level_family_give_what_the_library_decodes(token_ids):
    tokenizer = FAMILIES["byte_level"]
    whole = tokenizer.decode(token_ids)
    got = "".join(pieces(tokenizer, token_ids))
    assert whole.startswith(got)
    assert set(whole[len(got) :]) <= {"\ufffd"}  # an incomplete end


@given(before=texts, after=texts)
def test_a_continuation_adds_what_its_tokens_add_to_the_prompt(before, after):
    tokenizer = FAMILIES["metaspace"]
    prompt_ids = tokenizer.encode(before, add_special_tokens=False)
    token_ids = tokenizer.encode(after, add_special_tokens=False)
    expected = tokenizer.decode([*prompt_ids, *token_ids])[len(tokenizer.decode(prompt_ids)) :]
    assert "".join(pieces(tokenizer, token_ids, prompt_ids)) == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_a_continuation_keeps_its_first_space(family):
    tokenizer = FAMILIES[family]
    prompt_ids, token_ids = (tokenizer.encode(text, add_special_tokens=False) for text in ("a", " the"))
    assert "".join(pieces(tokenizer, token_ids[-1:], prompt_ids)).startswith(" ")


@pytest.mark.parametrize("family", FAMILIES)
def test_no_replacement_character_is_shown_while_a_character_is_incomplete(family):
    tokenizer = FAMILIES[family]
    backend = tokenizer.backend
    names = "ðŁĮį" if family == "byte_level" else ["<0xF0>", "<0x9F>", "<0x8C>", "<0x8D>"]
    token_ids = [backend.token_to_id(name) for name in names]
    assert pieces(tokenizer, token_ids) == ["", "", "", "🌍"]
    assert pieces(tokenizer, token_ids[:3]) == ["", "", ""]


@pytest.mark.parametrize("family", ["metaspace", "outside"])
def test_a_real_replacement_character_passes_at_once(family):
    tokenizer = FAMILIES[family]
    a, token_id = (tokenizer.backend.token_to_id(token) for token in ("a", "\ufffd"))
    assert pieces(tokenizer, [a, token_id, a]) == ["a", "\ufffd", "a"]


def test_special_and_unknown_tokens_are_no_text():
    tokenizer = FAMILIES["byte_level"]
    end = tokenizer.backend.token_to_id("<|end|>")
    think = tokenizer.backend.token_to_id("<think>")
    h = tokenizer.backend.token_to_id("h")
    assert pieces(tokenizer, [h, end, 100_000, think, h]) == ["h", "", "", "<think>", "h"]


def test_the_known_families_are_decoded_by_bytes():
    assert isinstance(detokenizer_for(FAMILIES["byte_level"]), ByteDetokenizer)
    assert isinstance(detokenizer_for(FAMILIES["metaspace"]), ByteDetokenizer)
    assert isinstance(detokenizer_for(FAMILIES["outside"]), WindowDetokenizer)


def test_the_window_does_not_grow_with_the_text():
    lengths = []

    class Recording(Tokenizer):
        def decode(self, token_ids):
            lengths.append(len(token_ids))
            return super().decode(token_ids)

    tokenizer = Recording(outside_metaspace())
    detokenizer = detokenizer_for(tokenizer)
    for token_id in tokenizer.encode("the a " * 200, add_special_tokens=False):
        detokenizer.push([token_id])
    assert len(lengths) > 400
    assert max(lengths) <= WINDOW_TOKENS + 1


def test_a_special_token_has_text_where_it_is_to_be_shown():
    tokenizer = Tokenizer(byte_level())
    ids = tokenizer.encode("a<|turn|>b<|end|>", add_special_tokens=False)
    turn = tokenizer.backend.token_to_id("<|turn|>")
    assert detokenizer_for(tokenizer).push(ids) == "ab"
    assert detokenizer_for(tokenizer, shown_ids={turn}).push(ids) == "a<|turn|>b"
