"""espeak-ng as a library, which says when each word begins.

Source: https://github.com/espeak-ng/espeak-ng/blob/1.51/src/include/espeak-ng/speak_lib.h
"""

import ctypes
import itertools
from collections.abc import Sequence
from typing import Any

import av
import numpy as np

SAMPLING_RATE = 16_000
LIBRARY = "libespeak-ng.so.1"
SYNCHRONOUS, TEXT_IN_UTF8, POSITION_IN_CHARACTERS = 2, 1, 1
RATE, PITCH = 1, 3  # parameters
END_OF_LIST, WORD = 0, 1  # events


class _Event(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int) for name in ("kind", "identifier", "text_position", "length", "milliseconds", "sample")),
        ("user_data", ctypes.c_void_p),
        ("of_kind", ctypes.c_char * 8),
    )


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event))


class Speaker:
    """Speaks in the calling thread; a process has one."""

    def __init__(self) -> None:
        """Load the library.

        Raises:
            OSError: it is not installed.
        """
        self._library = ctypes.CDLL(LIBRARY)
        self._rate = self._library.espeak_Initialize(SYNCHRONOUS, 0, None, 0)
        self._parts: list[np.ndarray] = []
        self._begins: dict[int, float] = {}  # seconds, by the place of a word in the text
        self._callback = _Callback(self._take)  # kept, since the library calls it
        self._library.espeak_SetSynthCallback(self._callback)

    def speak(
        self, words: Sequence[str], voice: str, words_per_minute: int, pitch: int
    ) -> tuple[np.ndarray, list[float]]:
        """Return samples (int16, 16,000 a second), and the second at which each word begins.

        Words that espeak-ng takes together have one begin.
        """
        self._parts.clear()
        self._begins.clear()
        if self._library.espeak_SetVoiceByName(voice.encode()) != 0:
            raise ValueError(f"espeak-ng has no voice {voice}")
        self._library.espeak_SetParameter(RATE, words_per_minute, 0)
        self._library.espeak_SetParameter(PITCH, pitch, 0)
        text = " ".join(words).encode() + b"\0"
        self._library.espeak_Synth(text, len(text), 0, POSITION_IN_CHARACTERS, 0, TEXT_IN_UTF8, None, None)
        places = itertools.accumulate((len(word) + 1 for word in words[:-1]), initial=1)
        begins = [self._begins[place] for place in places if place in self._begins]
        return self._resampled(np.concatenate(self._parts)), begins

    def _take(self, samples: Any, num_samples: int, events: Any) -> int:
        if num_samples > 0:
            self._parts.append(np.ctypeslib.as_array(samples, (num_samples,)).copy())
        index = 0
        while events[index].kind != END_OF_LIST:
            if events[index].kind == WORD:
                self._begins.setdefault(events[index].text_position, events[index].milliseconds / 1000)
            index += 1
        return 0

    def _resampled(self, samples: np.ndarray) -> np.ndarray:
        frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.rate = self._rate
        resampler = av.AudioResampler(format="s16", layout="mono", rate=SAMPLING_RATE)
        parts = [*resampler.resample(frame), *resampler.resample(None)]
        return np.concatenate([part.to_ndarray()[0] for part in parts])
