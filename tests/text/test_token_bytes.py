import pytest
from tokenizers import Regex, Tokenizer, decoders, models

from service.text.tokenizer import TokenBytes
from tests.text.small_tokenizers import byte_level, metaspace


def test_every_byte_of_the_byte_level_alphabet_is_itself():
    backend = byte_level()
    table = TokenBytes.of(backend)
    single = {table[i] for token, i in backend.get_vocab().items() if len(token) == 1}
    assert single >= {bytes([byte]) for byte in range(256)}
    assert table.num_leading_spaces_stripped == 0


def test_a_byte_token_is_its_byte_and_any_other_its_text():
    backend = metaspace()
    table = TokenBytes.of(backend)
    assert table[backend.token_to_id("<0xF0>")] == b"\xf0"
    assert table[backend.token_to_id("▁the")] == b" the"
    assert table[backend.token_to_id("</s>")] == b""
    assert table[10**6] == b""
    assert table.num_leading_spaces_stripped == 1


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        decoders.WordPiece(),
        decoders.Metaspace(),
        decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip("_", 1, 0)]),
        decoders.Sequence([decoders.Replace(Regex("x+"), " "), decoders.ByteFallback(), decoders.Fuse()]),
        decoders.Sequence([decoders.Fuse(), decoders.ByteFallback()]),
    ],
)
def test_a_decoder_of_neither_family_has_no_table(decoder):
    backend = Tokenizer(models.BPE())
    if decoder is not None:
        backend.decoder = decoder
    assert TokenBytes.of(backend) is None


def test_a_family_without_a_leading_space_has_a_table_too():
    backend = Tokenizer(models.BPE())
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    table = TokenBytes.of(backend)
    assert table is not None
    assert table.num_leading_spaces_stripped == 0


def test_spaces_that_are_stripped_at_the_end_need_the_whole_text():
    backend = Tokenizer(models.BPE())
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 1)])
    assert TokenBytes.of(backend) is None


def test_the_alphabet_of_bytes_is_that_of_gpt2():
    # Source: https://huggingface.co/openai-community/gpt2/blob/main/vocab.json, where " " is "Ġ" and "\n" is "Ċ".
    backend = Tokenizer(models.WordLevel({"!~¡¬®ÿ": 0, "ĀĠĊġŃ": 1, "ń": 2}, unk_token="ń"))
    backend.decoder = decoders.ByteLevel()
    table = TokenBytes.of(backend)
    assert table[0] == b"!~\xa1\xac\xae\xff"
    assert table[1] == b"\x00 \n\x7f\xad"
    assert table[2] == "ń".encode()
