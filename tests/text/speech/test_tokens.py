"""Whisper's tokens, found in its tokenizer."""

import pytest

from service.errors import MalformedCheckpoint
from service.text.speech.tokens import ENGLISH_VOCAB_SIZE, read_speech_tokens
from tests.text.speech.small_whisper import CONTROL, LANGUAGES, small_whisper


def test_the_tokens_of_an_old_export_are_found_without_its_generation_config():
    backend = small_whisper(num_timestamps=0)
    tokens = read_speech_tokens("test", backend, {"vocab_size": 2000}, {})
    assert tokens.languages == {code: backend.token_to_id(f"<|{code}|>") for code in LANGUAGES}
    assert tokens.no_speech == tokens.no_timestamps - 1
    assert tokens.first_timestamp == backend.get_vocab_size()
    assert tokens.seconds(tokens.first_timestamp + 50) == pytest.approx(1.0)
    assert not tokens.is_timestamp(tokens.no_timestamps)


def test_a_prompt_names_the_language_the_task_and_the_lack_of_timestamps():
    backend = small_whisper()
    tokens = read_speech_tokens("test", backend, {}, {})
    prompt = tokens.prompt("de", is_translated=True, has_timestamps=False)
    assert [backend.id_to_token(token_id) for token_id in prompt] == [
        *("<|startoftranscript|>", "<|de|>", "<|translate|>", "<|notimestamps|>"),
    ]
    with pytest.raises(KeyError):
        tokens.prompt("fr", is_translated=False, has_timestamps=True)


@pytest.mark.parametrize(
    ("config", "generation"),
    [({"vocab_size": ENGLISH_VOCAB_SIZE}, {}), ({"vocab_size": 2000}, {"is_multilingual": False})],
)
def test_a_model_of_english_alone_is_told_no_language(config, generation):
    tokens = read_speech_tokens("test", small_whisper(), config, generation)
    assert not tokens.is_multilingual
    assert not tokens.languages
    assert tokens.prompt(None, is_translated=False, has_timestamps=True) == [tokens.start]


def test_symbols_that_nobody_speaks_are_suppressed_and_words_are_not():
    backend = small_whisper()
    tokens = read_speech_tokens("test", backend, {}, {})
    for text in ("[", "(", "#", "♪"):
        assert backend.encode(text, add_special_tokens=False).ids[0] in tokens.suppressed
    for name in CONTROL[1:2] + CONTROL[-6:-1]:
        assert backend.token_to_id(name) in tokens.suppressed
    for text in ("a", "?", ",", "!"):
        assert backend.encode(text, add_special_tokens=False).ids[0] not in tokens.suppressed
    assert tokens.end in tokens.suppressed_first
    assert tokens.end not in tokens.suppressed


def test_a_tokenizer_of_another_model_is_refused_with_the_token_that_it_lacks():
    with pytest.raises(MalformedCheckpoint, match="startoftranscript"):
        read_speech_tokens("test", small_whisper(CONTROL[:1]), {}, {})
