"""Speech that espeak-ng speaks: sentences of everyday words, in several voices, speeds and pitches.

Source: https://github.com/espeak-ng/espeak-ng/blob/1.51/src/espeak-ng.1.ronn (options)
"""

import io
import random
import subprocess
import wave
from typing import NamedTuple

import av
import numpy as np

SAMPLING_RATE = 16_000
VOICES = ("en-us", "en-us+f3", "en-us+m3", "en-us+f2", "en-gb", "en-gb+m7")
SUBJECTS = (
    *("my brother", "the old teacher", "a young doctor", "our neighbor", "the farmer", "her sister"),
    *("the captain", "a friend of mine", "the whole family", "the woman next door", "everybody", "the mayor"),
)
VERBS = (
    *("bought", "carried", "painted", "found", "remembered", "forgot", "sold", "opened", "cleaned", "described"),
    *("looked for", "talked about", "asked for", "thought about"),
)
OBJECTS = (
    *("the red car", "a small house", "three books", "the broken window", "some fresh bread", "a cup of coffee"),
    *("the long letter", "an old map", "the kitchen table", "a new coat", "two tickets", "the garden"),
)
PLACES = (
    *("in the city", "near the river", "at the station", "behind the school", "on the bridge", "by the sea"),
    *("in the mountains", "at the market", "in front of the church", "across the street"),
)
TIMES = (
    *("yesterday", "last summer", "this morning", "on Monday", "after dinner", "every evening", "a week ago"),
    *("before the storm", "during the winter", "in the spring"),
)


class Clip(NamedTuple):
    """What is said, and how."""

    text: str
    voice: str
    words_per_minute: int
    pitch: int  # 0 to 99


def clip(seed: int, num_sentences: int) -> Clip:
    """Return so many sentences, which the seed chooses with the voice."""
    chosen = random.Random(seed)
    sentences = []
    for _ in range(num_sentences):
        parts = [chosen.choice(words) for words in (SUBJECTS, VERBS, OBJECTS, PLACES, TIMES)]
        sentences.append(f"{' '.join(parts).capitalize()}.")
    return Clip(" ".join(sentences), chosen.choice(VOICES), chosen.randrange(130, 176), chosen.randrange(35, 66))


def speak(said: Clip) -> np.ndarray:
    """Return 16-bit samples, 16,000 a second.

    Raises:
        OSError: espeak-ng is not installed.
    """
    options = ["-v", said.voice, "-s", str(said.words_per_minute), "-p", str(said.pitch)]
    command = ["espeak-ng", *options, "--stdout", said.text]
    content = subprocess.run(command, check=True, capture_output=True).stdout
    resampler = av.AudioResampler(format="s16", layout="mono", rate=SAMPLING_RATE)
    with av.open(io.BytesIO(content), mode="r") as container:
        parts = [part.to_ndarray()[0] for frame in container.decode(audio=0) for part in resampler.resample(frame)]
    return np.concatenate([*parts, *(part.to_ndarray()[0] for part in resampler.resample(None))])


def wave_file(samples: np.ndarray) -> bytes:
    """Return a wave file of 16-bit samples."""
    output = io.BytesIO()
    with wave.open(output, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLING_RATE)
        file.writeframes(samples.astype("<i2").tobytes())
    return output.getvalue()
