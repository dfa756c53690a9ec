"""Strings on which tokenizers differ, the same in every process; what makes the references imports this file alone."""

import random
from collections.abc import Iterator, Sequence

SENTENCES = (
    "Hello world, how are you today? I'm fine, thank you. The quick brown fox jumps over the lazy dog.",
    "Grüße aus München! Привет, мир. こんにちは世界。 안녕하세요 🌍🌎🌏 👩‍👩‍👧 naïve café STOP stop",
    "def f(x: int) -> str:\n    return {'a': [1, 2.5e-3], \"b\": None}[x]  # don't",
    "مرحبا بالعالم। नमस्ते दुनिया। Ａｆｕｌｌ ｗｉｄｔｈ ﬁne Ⅻ ½ x² İstanbul ǅ ß",
    "It's 1234567 o'clock; we'll, they've, I'd ... !!! --- __init__ e\u0301 \u00e9",
)
PIECES = (
    " ", "  ", "\n", "\n\n", "\t", "\r\n", "\u00a0", "\u200b", "\u3000", "\ufeff", ".", ",", "?!", "'s", "’t", "``",
    "''", "▁", "Ġ", "##", "<0x41>", "\x00", "\ufffd", "é", "e\u0301", "ſ", "中文", "日本", "ที่", "\U0001f3f4", "İ",
    "<s>", "</s>", "<unk>", "<pad>", "<mask>", "[CLS]", "[SEP]", "[MASK]", "[UNK]", "[unk]", "<|endoftext|>", "<bos>",
    "<|im_start|>", "<|im_end|>", "<extra_id_0>", "<|user|>", "<image>", "[INST]", "007", "3.14", "a", "B", "ZZ", "qü",
)  # fmt: skip


def strings(num: int) -> Iterator[str]:
    """Yield strings: whole sentences, then random mixtures of their parts and of what tokenizers treat by rules."""
    yield from ("", " ", *SENTENCES, *PIECES)
    drawn = random.Random(55)
    for _ in range(num - 2 - len(SENTENCES) - len(PIECES)):
        yield "".join(_part(drawn) for _ in range(drawn.randrange(1, 9)))


def _part(drawn: random.Random) -> str:
    if drawn.random() < 0.45:
        return drawn.choice(PIECES)
    if drawn.random() < 0.1:
        return "".join(
            chr(drawn.choice((drawn.randrange(0x20, 0x3000), drawn.randrange(0x1F300, 0x1F700)))) for _ in "ab"
        )
    words = _words(drawn.choice(SENTENCES))
    start = drawn.randrange(len(words))
    return " ".join(words[start : start + drawn.randrange(1, 5)])


def _words(sentence: str) -> Sequence[str]:
    return sentence.split(" ")
