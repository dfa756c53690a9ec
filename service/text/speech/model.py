"""A speech model as the host uses it: its tokenizer, special tokens and sizes, without weights."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from service.text.speech.tokens import SpeechTokens
from service.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class SpeechModel:
    """One model."""

    tokens: SpeechTokens
    tokenizer: Tokenizer
    context_len: int  # tokens of a decoder: half of them for what comes before a window, half for its transcript
    window_frames: int  # of features, 100 a second; two of them are one position of the encoder's output
    num_mels: int
    heads: tuple[tuple[int, int], ...] = ()  # layer and head of those that follow the sound; empty if none are known

    @property
    def max_prompt_tokens(self) -> int:
        """The most tokens of text before a window."""
        return self.context_len // 2 - 1

    @property
    def max_transcript_tokens(self) -> int:
        """The most tokens of a window's transcript, its end included."""
        return self.context_len // 2

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, without timestamps; an incomplete character is U+FFFD."""
        return self.spelled([token_id for token_id in token_ids if token_id < self.tokens.end])

    def spelled(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, with the names of those that are not text."""
        return b"".join(map(self.tokenizer.token_bytes_of, token_ids)).decode(errors="replace")

    def prompt_ids(self, text: str, param: str = "prompt") -> list[int]:
        """Return the tokens of a text that comes before a window; raises InvalidParameter for a lone surrogate."""
        return self.tokenizer.encode(f" {text.strip()}", add_special_tokens=False, param=param)


def compression_ratio(text: str) -> float:
    """Return how many times shorter a text is when compressed; of a text that repeats itself, many times."""
    content = text.encode()
    return len(content) / len(zlib.compress(content))
