"""The ids of Whisper's tokens that are not text, and of those that a transcription never has.

Old exports name few of them, so they are found from the strings of the tokens and their order:

    text … <|endoftext|> <|startoftranscript|> <|en|> … <|translate|> <|transcribe|> <|startoflm|> <|startofprev|>
    <|nospeech|> <|notimestamps|> <|0.00|> <|0.02|> … <|30.00|>

Source: https://github.com/openai/whisper/blob/main/whisper/tokenizer.py (Tokenizer)
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers

from service.errors import MalformedCheckpoint

TIMESTAMP_S = 0.02
# The vocabulary of OpenAI's English models; its tokens of languages and tasks were never trained.
ENGLISH_VOCAB_SIZE = 51_864
_LANGUAGE = re.compile(r"<\|([a-z]{2,3})\|>")
_SYMBOLS = (
    *'"#()*+/:;<=>@[\\]^_`{|}~「」『』',
    *("<<", ">>", "<<<", ">>>", "--", "---", "-(", "-[", "('", '("', "((", "))", "(((", ")))", "[[", "]]", "{{", "}}"),
    *("♪♪", "♪♪♪"),
)
_NOTES = "♩♪♫♬♭♮♯"


@dataclass(frozen=True)
class SpeechTokens:
    """Ids of one checkpoint."""

    end: int
    start: int  # of a transcript
    previous: int  # precedes the text before the window
    start_of_lm: int
    no_speech: int
    no_timestamps: int
    translate: int | None  # None of an English-only model, as are the task of transcribing and the languages
    transcribe: int | None
    languages: Mapping[str, int]  # by code
    vocab_size: int
    suppressed: frozenset[int]  # never in a transcript: symbols that are not spoken, and the tokens before timestamps
    suppressed_first: frozenset[int]  # never the first token of a transcript: a space, and the end

    @property
    def first_timestamp(self) -> int:
        """The id of the window's begin; every timestamp is `TIMESTAMP_S` after the one before."""
        return self.no_timestamps + 1

    @property
    def is_multilingual(self) -> bool:
        """Whether the prompt of the model has a language and a task."""
        return self.transcribe is not None

    def is_timestamp(self, token_id: int) -> bool:
        """Return whether a token is a time in the window."""
        return token_id >= self.first_timestamp

    def seconds(self, token_id: int) -> float:
        """Return the time in the window, in seconds, that a timestamp says."""
        return (token_id - self.first_timestamp) * TIMESTAMP_S

    def prompt(self, language: str | None, *, is_translated: bool, has_timestamps: bool) -> list[int]:
        """Return the tokens that begin a transcript.

        Args:
            language: its code; an English-only model ignores it.
            is_translated: whether the text is to be English.
            has_timestamps: whether the text is to have timestamps.

        Raises:
            KeyError: the model does not know the language.
        """
        ids = [self.start]
        if self.translate is not None and self.transcribe is not None:
            ids += [self.languages[language or "en"], self.translate if is_translated else self.transcribe]
        return ids if has_timestamps else [*ids, self.no_timestamps]


def read_speech_tokens(
    uri: str, backend: tokenizers.Tokenizer, config: Mapping[str, Any], generation: Mapping[str, Any]
) -> SpeechTokens:
    """Find the tokens of a checkpoint.

    Args:
        uri: the checkpoint, for messages.
        backend: its tokenizer.
        config: its `config.json`.
        generation: its `generation_config.json`; empty if it has none.

    Raises:
        MalformedCheckpoint: the tokenizer lacks a token without which nothing can be transcribed.
    """

    def required(*names: str) -> int:
        found = next((token_id for name in names if (token_id := backend.token_to_id(name)) is not None), None)
        if found is None:
            raise MalformedCheckpoint(uri, "tokenizer.json", f"has no token {names[0]}, which every Whisper has")
        return found

    vocab_size = int(config.get("vocab_size") or backend.get_vocab_size())
    start, no_timestamps = required("<|startoftranscript|>"), required("<|notimestamps|>")
    previous, start_of_lm = required("<|startofprev|>"), required("<|startoflm|>")
    translate, transcribe = required("<|translate|>"), required("<|transcribe|>")
    is_multilingual = generation.get("is_multilingual")
    if not isinstance(is_multilingual, bool):
        is_multilingual = vocab_size != ENGLISH_VOCAB_SIZE
    end = required("<|endoftext|>")
    # The first of them is called by two names, and has no string in some exports.
    no_speech = backend.token_to_id("<|nospeech|>") or backend.token_to_id("<|nocaptions|>") or no_timestamps - 1
    never = {start, previous, start_of_lm, no_speech, translate, transcribe}
    space = backend.encode(" ", add_special_tokens=False).ids
    return SpeechTokens(
        end=end,
        start=start,
        previous=previous,
        start_of_lm=start_of_lm,
        no_speech=no_speech,
        no_timestamps=no_timestamps,
        translate=translate if is_multilingual else None,
        transcribe=transcribe if is_multilingual else None,
        languages=_languages(backend, start, translate) if is_multilingual else {},
        vocab_size=vocab_size,
        suppressed=frozenset(never | _unspoken(backend)),
        suppressed_first=frozenset({*space, end}),
    )


def _languages(backend: tokenizers.Tokenizer, start: int, translate: int) -> dict[str, int]:
    """Return the languages, whose tokens are between the one that begins a transcript and the first task."""
    names = ((token_id, backend.id_to_token(token_id) or "") for token_id in range(start + 1, translate))
    return {match[1]: token_id for token_id, name in names if (match := _LANGUAGE.fullmatch(name))}


def _unspoken(backend: tokenizers.Tokenizer) -> set[int]:
    """Return the tokens of symbols that nobody speaks: brackets, dashes before a speaker, notes of music.

    Source: https://github.com/openai/whisper/blob/main/whisper/tokenizer.py (non_speech_tokens)
    """

    def ids(text: str) -> list[int]:
        return backend.encode(text, add_special_tokens=False).ids

    found = {ids(" -")[0], ids(" '")[0]}
    for symbol in (*_SYMBOLS, *_NOTES):
        for tokens in (ids(symbol), ids(f" {symbol}")):
            if len(tokens) == 1 or symbol in _NOTES:
                found.add(tokens[0])
    return found
