"""A tokenizer with Whisper's special tokens, small enough to be built in a test."""

from tokenizers import AddedToken, Tokenizer

from tests.text.small_tokenizers import byte_level

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
