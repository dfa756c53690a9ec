"""Windows of sound to learn from: phrases that espeak-ng speaks one after the other, with noise, and what is said when.

A phrase is spoken once and heard many times, each time beside other phrases, louder or softer, in other noise.
"""

import random
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from examples.hear.training.speaker import SAMPLING_RATE, Speaker
from examples.hear.training.words import WINDOW_S, WORDS
from service.media.log_mel import Recording

VOICES = (
    *("en-us", "en-us+f1", "en-us+f2", "en-us+f3", "en-us+f4", "en-us+m1", "en-us+m2", "en-us+m3", "en-us+m4"),
    *("en-us+m7", "en", "en+f2", "en+m3", "en-gb-x-rp", "en-gb-scotland"),
)
SPEEDS, PITCHES = (110, 185), (30, 70)
MAX_WORDS, MAX_PHRASE_S = 8, 5.0
NUM_MELS, WINDOW_FRAMES, POSITIONS_PER_S = 80, WINDOW_S * 100, 50
SILENT_SHARE, NOISY_SHARE = 0.04, 0.7
SIGNAL_TO_NOISE_DB = (5.0, 35.0)
NUM_NOISES, NOISE_LENGTH = 12, 1 << 18
QUIET = 0.01  # of the loudest sample: softer ones at the ends of a phrase are cut off


class Word(NamedTuple):
    """A spoken word, in seconds from the begin of its phrase or window."""

    text: str
    begin_s: float
    end_s: float

    def later(self, delay_s: float) -> "Word":
        """Return the word as it is said later."""
        return Word(self.text, self.begin_s + delay_s, self.end_s + delay_s)


class Phrase(NamedTuple):
    """Words that were spoken in one breath, without silence around them."""

    words: tuple[Word, ...]
    samples: np.ndarray  # int16


class Lesson(NamedTuple):
    """A window and what is said in it."""

    features: np.ndarray  # [frame, mel]
    phrases: tuple[tuple[Word, ...], ...]  # the last words may be beyond the window's end


def speak_phrase(speaker: Speaker, seed: int) -> Phrase:
    """Speak words that the seed chooses with the voice; as many as fit into a phrase."""
    chosen = random.Random(seed)
    voice, speed, pitch = chosen.choice(VOICES), chosen.randint(*SPEEDS), chosen.randint(*PITCHES)
    while True:
        words = [chosen.choice(WORDS) for _ in range(chosen.randint(1, MAX_WORDS))]
        samples, begins_s = speaker.speak(words, voice, speed, pitch)
        loud = np.flatnonzero(np.abs(samples.astype(np.int32)) > QUIET * np.abs(samples.astype(np.int32)).max())
        samples, cut_s = samples[loud[0] : loud[-1] + 1], loud[0] / SAMPLING_RATE
        if len(samples) <= MAX_PHRASE_S * SAMPLING_RATE and len(begins_s) == len(words):
            begins = [max(0.0, begin_s - cut_s) for begin_s in begins_s]
            ends = [*begins[1:], len(samples) / SAMPLING_RATE]
            return Phrase(tuple(map(Word, words, begins, ends)), samples)


def lessons(phrases: Sequence[Phrase], seed: int, *, most_phrases: int = 3) -> Iterator[Lesson]:
    """Yield windows without end."""
    rng = np.random.default_rng(seed)
    while True:
        yield _lesson(phrases, rng, most_phrases)


def features_of(samples: np.ndarray) -> np.ndarray:
    """Return the features of a recording's first window, as the service makes them: `[frame, mel]`."""
    recording = Recording(samples, num_mels=NUM_MELS, window_frames=WINDOW_FRAMES)
    return recording.window(0, min(recording.num_frames, WINDOW_FRAMES)).T


def _lesson(phrases: Sequence[Phrase], rng: np.random.Generator, most_phrases: int) -> Lesson:
    # A recording is as long as what is said, or longer; what is beyond the window is cut off there.
    samples, spoken = np.zeros(round(rng.uniform(1.0, WINDOW_S + 3.0) * SAMPLING_RATE)), []
    if rng.random() > SILENT_SHARE:
        place = round(rng.exponential(0.25) * SAMPLING_RATE)
        for _ in range(rng.integers(1, most_phrases + 1)):
            said = phrases[rng.integers(len(phrases))]
            if place > (WINDOW_S - 0.5) * SAMPLING_RATE:
                break
            end = place + len(said.samples)
            if end > len(samples):
                samples = np.pad(samples, (0, end + round(rng.uniform(0, 0.3) * SAMPLING_RATE) - len(samples)))
            samples[place:end] += said.samples * rng.uniform(0.6, 1.0)
            spoken.append(tuple(word.later(place / SAMPLING_RATE) for word in said.words))
            place = end + round(rng.uniform(0.3, 1.5) * SAMPLING_RATE)
    loudest = max(1.0, float(np.abs(samples).max()))
    if rng.random() < NOISY_SHARE or not spoken:
        samples = samples + _noise(len(samples), rng) * loudest * 0.3 * 10 ** (-rng.uniform(*SIGNAL_TO_NOISE_DB) / 20)
    level = 32767 * 10 ** (-rng.uniform(1, 20) / 20) / max(1.0, float(np.abs(samples).max()))
    return Lesson(features_of((samples * level).astype(np.int16)), tuple(spoken))


def _noise(length: int, rng: np.random.Generator) -> np.ndarray:
    """Return a part of a noise of deviation 1."""
    noises = _noises()
    begin = rng.integers(NOISE_LENGTH - length)
    return noises[rng.integers(len(noises)), begin : begin + length]


@cache
def _noises() -> np.ndarray:
    """Return noises: the first is white, and the others fall ever more with the frequency."""
    rng = np.random.default_rng(0)
    spectrum = np.fft.rfft(rng.standard_normal((NUM_NOISES, NOISE_LENGTH)))
    slopes = np.linspace(0, 1, NUM_NOISES)[:, None]
    noises = np.fft.irfft(spectrum * np.arange(1, spectrum.shape[1] + 1) ** -slopes, NOISE_LENGTH)
    return (noises / noises.std(axis=1, keepdims=True)).astype(np.float32)
