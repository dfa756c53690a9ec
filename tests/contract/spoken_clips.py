"""The clips that real weights are compared on: spoken sentences, some in noise, long files, and clips without speech.

`python -m tests.contract.spoken_clips FOLDER` writes them as wave files.
"""

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from examples.hear.spoken import SAMPLING_RATE, Clip, clip, speak, wave_file

NUM_SHORT, NUM_NOISY, NUM_LONG, NUM_WITHOUT_SPEECH = 200, 60, 5, 50
PAUSE_S = 1.5  # between the parts of a long file
FULL_SCALE = 32767


class Sound(NamedTuple):
    """A clip, and what is said in it."""

    name: str
    samples: np.ndarray  # 16 bits, 16,000 a second
    text: str

    @property
    def digest(self) -> str:
        """Of the samples, which another version of espeak-ng may make otherwise."""
        return hashlib.sha256(self.samples.tobytes()).hexdigest()[:16]


def sounds() -> Iterator[Sound]:
    """Yield all clips.

    Raises:
        OSError: espeak-ng is not installed.
    """
    for seed in range(NUM_SHORT):
        said = clip(seed, 1 + seed % 3)
        samples = speak(said)
        if seed >= NUM_SHORT - NUM_NOISY:
            samples = with_noise(samples, snr_db=5 + seed % 6 * 5, seed=seed)
        yield Sound(f"{'noisy' if seed >= NUM_SHORT - NUM_NOISY else 'clean'}-{seed}", samples, said.text)
    for number in range(NUM_LONG):
        parts = [clip(1000 + 20 * number + part, 4) for part in range(6)]
        yield Sound(f"long-{number}", _joined(parts), " ".join(part.text for part in parts))
    for number in range(NUM_WITHOUT_SPEECH):
        yield Sound(f"wordless-{number}", _wordless(number), "")


def with_noise(samples: np.ndarray, *, snr_db: float, seed: int) -> np.ndarray:
    """Add white noise, so much weaker than the sound."""
    wide = samples.astype(np.float64)
    level = np.sqrt(np.mean(wide**2)) / 10 ** (snr_db / 20)
    return _clipped(wide + level * np.random.default_rng(seed).standard_normal(len(wide)))


def _joined(parts: list[Clip]) -> np.ndarray:
    pause = np.zeros(int(PAUSE_S * SAMPLING_RATE), np.int16)
    return np.concatenate([piece for part in parts for piece in (speak(part), pause)])


def _wordless(number: int) -> np.ndarray:
    """Return silence, noise of several colors, or slow chords."""
    random = np.random.default_rng(number)
    size = int((4 + 4 * (number % 6)) * SAMPLING_RATE)
    times = np.arange(size) / SAMPLING_RATE
    match number % 5:
        case 0:
            return np.zeros(size, np.int16)
        case 1:
            return _clipped(10 ** random.uniform(1, 3.7) * random.standard_normal(size))
        case 2:
            walk = np.cumsum(random.standard_normal(size))
            walk -= np.convolve(walk, np.full(800, 1 / 800), mode="same")
            return _clipped(walk / np.abs(walk).max() * random.uniform(1000, 12000))
        case 3:
            return _clipped(random.uniform(1000, 9000) * np.sin(2 * np.pi * random.uniform(80, 2000) * times))
        case _:
            roots = 110 * 2 ** (random.integers(0, 12, 1 + size // SAMPLING_RATE) / 12)
            root = np.repeat(roots, SAMPLING_RATE)[:size]
            phase = 2 * np.pi * np.cumsum(root) / SAMPLING_RATE
            fading = np.exp(-2 * (times % 1))
            return _clipped(6000 * fading * sum(np.sin(phase * ratio) for ratio in (1, 1.25, 1.5)) / 3)


def _clipped(values: np.ndarray) -> np.ndarray:
    return np.clip(np.round(values), -FULL_SCALE, FULL_SCALE).astype(np.int16)


def main(folder: Path) -> None:
    """Write the clips."""
    folder.mkdir(parents=True, exist_ok=True)
    for sound in sounds():
        (folder / f"{sound.name}.wav").write_bytes(wave_file(sound.samples))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
