"""A tokenizer with Whisper's special tokens, small enough to be built in a test."""

import json

from tokenizers import AddedToken, Tokenizer

from service.text.tokenizer import TokenBytes
from tests.text.small_tokenizers import byte_level
from tests.text.speech import scripts

LANGUAGES = ("en", "de", "haw")
CONTROL = (
    *("<|endoftext|>", "<|startoftranscript|>", *(f"<|{code}|>" for code in LANGUAGES)),
    *("<|translate|>", "<|transcribe|>", "<|startoflm|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>"),
)
NUM_TIMESTAMPS = 301


def small_whisper(control: tuple[str, ...] = CONTROL, num_timestamps: int = NUM_TIMESTAMPS) -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    times = [f"<|{index * 0.02:.2f}|>" for index in range(num_timestamps)]
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in times])
    return tokenizer


def replayed_whisper() -> Tokenizer:
    """The one that scripts are replayed with."""
    control = tuple(token for token in CONTROL if token[2:-2] not in LANGUAGES)
    return small_whisper(
        (*control[:2], *(f"<|{code}|>" for code in scripts.LANGUAGES), *control[2:]), scripts.NUM_TIMESTAMPS
    )


def main() -> None:
    """Print the ids of its tokens, for another library."""
    tokenizer = replayed_whisper()
    known = TokenBytes.of(tokenizer)
    assert known is not None
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    vocabulary = tokenizer.get_vocab()
    texts = {known[token_id].hex(): token_id for token, token_id in vocabulary.items() if token not in added}
    special = {token: token_id for token, token_id in vocabulary.items() if token in added}
    print(json.dumps({"texts": texts, "special": special}))


if __name__ == "__main__":
    main()
