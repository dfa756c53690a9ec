"""What the demo model hears: digits, the spelling alphabet and commands, and its tokens."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
LETTERS = (
    *("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel", "india", "juliet", "kilo", "lima"),
    *("mike", "november", "oscar", "papa", "quebec", "romeo", "sierra", "tango", "uniform", "victor", "whiskey"),
    *("x-ray", "yankee", "zulu"),
)
COMMANDS = (
    *("yes", "no", "up", "down", "left", "right", "on", "off", "start", "stop", "open", "close", "play", "pause"),
    *("next", "back", "save", "cancel", "help", "please"),
)
WORDS = (*DIGITS, *LETTERS, *COMMANDS)
WINDOW_S = 6
TIMESTAMPS_PER_S = 50
END, START, NO_SPEECH, NO_TIMESTAMPS, PREVIOUS = (
    "<|endoftext|>",
    "<|startoftranscript|>",
    "<|nospeech|>",
    "<|notimestamps|>",
    "<|startofprev|>",
)
# In the order that Whisper's have.
CONTROL = (END, START, "<|en|>", "<|translate|>", "<|transcribe|>", "<|startoflm|>", PREVIOUS, NO_SPEECH, NO_TIMESTAMPS)


def make_tokenizer() -> Tokenizer:
    """Return a byte-level tokenizer in which each word is a token, with Whisper's own tokens after them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=4096, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator([f" {word}" for word in WORDS] * 2, trainer)
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in CONTROL])
    times = [f"<|{index / TIMESTAMPS_PER_S:.2f}|>" for index in range(WINDOW_S * TIMESTAMPS_PER_S + 1)]
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in times])
    return tokenizer
