"""Scripted decodings of made-up recordings; also run beside openai-whisper, so they import nothing of the service."""

from typing import NamedTuple

import numpy as np

NUM_SCRIPTS = 200
LANGUAGES = ("en", "zh", "de")
NUM_TIMESTAMPS = 1501
WINDOW_FRAMES = 3000
NUM_HEADS, NUM_POSITIONS = 3, 1500
WORDS = (
    "Hello",
    " world",
    ",",
    " how",
    " are",
    " you",
    "?",
    ' "',
    "quick",
    " brown",
    ".",
    " fox",
    "こんにちは",
    "世界",
)


class Script(NamedTuple):
    """One recording, what is asked for, and what each decoding finds."""

    seed: int
    num_frames: int
    language: str
    is_translated: bool
    has_previous_text: bool
    has_words: bool
    prompt: str | None
    temperatures: tuple[float, ...]
    # Tokens of text as strings, those of time as numbers; the mean log-probability, the probability of no speech.
    decodings: tuple[tuple[tuple[str | int, ...], float, float], ...]


def script_of(seed: int) -> Script:
    """Return one of the scripts, whose seeds are below NUM_SCRIPTS."""
    random = np.random.RandomState(seed)
    is_unlikely = seed % 10 == 0
    return Script(
        seed=seed,
        num_frames=int(random.choice([0, 1, 140, 2999, 3001, 3500, 4500, 6000, 9137, 14000])),
        language=LANGUAGES[int(random.choice(3, p=[0.6, 0.3, 0.1]))],
        is_translated=bool(random.uniform() < 0.2),
        has_previous_text=bool(random.uniform() < 0.8),
        has_words=bool(random.uniform() < 0.4),
        prompt="Hello world, how are you? " * random.randint(1, 20) if random.uniform() < 0.3 else None,
        temperatures=(0.0, 0.2, 0.4, 0.6, 0.8, 1.0) if random.uniform() < 0.8 else (0.4, 0.6),
        decodings=tuple(_decoding(random, is_unlikely=is_unlikely) for _ in range(40)),
    )


def _decoding(random: np.random.RandomState, *, is_unlikely: bool) -> tuple[tuple[str | int, ...], float, float]:
    kind = random.choice(["speech", "speech", "speech", "repeated", "silence", "no times", "nothing"])
    avg_logprob = float(random.choice([-0.2, -0.9, -1.0, -1.1, -2.0], p=[0.3, 0.15, 0.1, 0.25, 0.2]))
    no_speech = float(random.choice([0.01, 0.59, 0.61, 0.99], p=[0.6, 0.2, 0.1, 0.1]))
    if is_unlikely:
        avg_logprob, no_speech = -2.0, 0.01
    if kind == "silence":
        return ("Hello",), -1.5, 0.9
    if kind == "nothing":
        return (), avg_logprob, no_speech
    if kind == "no times":
        return _text(random), avg_logprob, no_speech
    tokens: list[str | int] = []
    time = random.randint(0, 50)
    for _ in range(random.randint(1, 6)):
        text = ("fox", " fox") * 60 if kind == "repeated" else _text(random)
        end = time + random.randint(1, 300)
        tokens += [time, *text, end]
        time = end + int(random.choice([0, 0, random.randint(0, 100)]))
        if time > NUM_TIMESTAMPS - 400:
            break
    ending = random.choice(["pair", "single", "text", "begin"], p=[0.3, 0.4, 0.2, 0.1])
    if ending == "pair":
        tokens += [tokens[-1]]
    elif ending == "text":
        tokens += [time, *_text(random)]
    elif ending == "begin":
        tokens = tokens[:1]
    return tuple(tokens), avg_logprob, no_speech


def _text(random: np.random.RandomState) -> tuple[str, ...]:
    if random.uniform() < 0.05:
        return (" ",)
    return tuple(str(word) for word in random.choice(WORDS, size=random.randint(1, 9)))


def attention_scores(seed: int, num_tokens: int) -> np.ndarray:
    """Return scores `[head, token, position]` that follow a diagonal, with noise."""
    random = np.random.RandomState(seed)
    length = random.randint(num_tokens, NUM_POSITIONS)
    centre = np.sort(random.randint(0, length, num_tokens))
    distance = np.abs(np.arange(NUM_POSITIONS) - centre[:, None]) / random.randint(2, 20)
    noise = random.normal(size=(NUM_HEADS, num_tokens, NUM_POSITIONS))
    return (noise - 3 * np.minimum(distance, 3)).astype(np.float32)


def token_logits(seed: int, num_tokens: int, vocab_size: int) -> np.ndarray:
    """Return logits `[token, id]`."""
    return np.random.RandomState(seed).normal(size=(num_tokens, vocab_size)).astype(np.float32)
