"""Log-mel features of Whisper, on the host.

Frames are bit-equal wherever a window begins, so the features of a long file are made window by window, once the
largest value of all is known.

Source: https://github.com/openai/whisper/blob/v20250625/whisper/audio.py#L110 (log_mel_spectrogram)
"""

import math
from functools import cache, cached_property

import numpy as np

from service.media.samples import SAMPLING_RATE, Samples

FFT_SIZE = 400  # samples
HOP_SIZE = 160  # samples between frames
FRAMES_PER_S = SAMPLING_RATE // HOP_SIZE
MIN_POWER = 1e-10
DYNAMIC_RANGE = 8.0  # powers of ten below the largest value
FULL_SCALE = 32768.0
FRAMES_AT_ONCE = 3000
KEPT_BLOCKS = 2  # as many as a window reaches into
FRAMES_AT_END = 1 + (HOP_SIZE + FFT_SIZE // 2) // HOP_SIZE  # after the last, that may reach back into the recording

type Features = np.ndarray[tuple[int, int], np.dtype[np.float32]]  # [mel, frame]


class Recording:
    """The features of one file, as openai-whisper's `transcribe` makes them: with one window of silence at the end."""

    def __init__(self, samples: Samples, *, num_mels: int, window_frames: int) -> None:
        """Keep the samples; features are made when they are asked for.

        Args:
            samples: 16,000 a second.
            num_mels: of each frame: 80, or 128 for large-v3 and its descendants.
            window_frames: of a window: 3,000 in all published models.
        """
        self._samples, self._num_mels = samples, num_mels
        self.window_frames = window_frames
        self.num_frames = len(samples) // HOP_SIZE
        self._kept: tuple[tuple[int, Features], ...] = ()

    @property
    def duration_s(self) -> float:
        """How long it plays."""
        return len(self._samples) / SAMPLING_RATE

    @cached_property
    def _max(self) -> float:
        """The largest logarithm of the whole recording and the silence after it."""
        blocks = range(-(-(self.num_frames + FRAMES_AT_END) // FRAMES_AT_ONCE))
        return max(math.log10(MIN_POWER), *(float(self._block(number).max()) for number in blocks))

    def window(self, begin: int, num_frames: int) -> Features:
        """Return the features of a window of which the first frames are taken from the recording; the rest are 0.0."""
        features = np.zeros((self._num_mels, self.window_frames), np.float32)
        if num_frames:
            largest, end = self._max, begin + num_frames
            first, after = begin // FRAMES_AT_ONCE, -(-end // FRAMES_AT_ONCE)
            blocks = np.concatenate([self._block(number) for number in range(first, after)], axis=1)
            taken = blocks[:, begin - first * FRAMES_AT_ONCE :][:, :num_frames]
            features[:, :num_frames] = normalized(taken, largest)
        return features

    def _block(self, number: int) -> Features:
        """Return the logarithms of some frames, the last of which reach into the silence at the end.

        Threads may call it at the same time.
        """
        found = next((block for kept, block in self._kept if kept == number), None)
        if found is None:
            begin = number * FRAMES_AT_ONCE
            found = self._log10(begin, min(FRAMES_AT_ONCE, self.num_frames + FRAMES_AT_END - begin))
            self._kept = (*self._kept[1 - KEPT_BLOCKS :], (number, found))
        return found

    def _log10(self, begin: int, num_frames: int) -> Features:
        first = begin * HOP_SIZE - FFT_SIZE // 2
        end = first + (num_frames - 1) * HOP_SIZE + FFT_SIZE
        taken = self._samples[max(0, first) : max(0, end)].astype(np.float32) / FULL_SCALE
        samples = np.zeros(end - first, np.float32)
        samples[max(0, -first) :][: len(taken)] = taken
        if first < 0:  # mirrored at the beginning
            samples[:-first] = samples[-first + 1 : -2 * first + 1][::-1]
        return _log10_mel(samples, self._num_mels)


def log_mel(samples: np.ndarray, num_mels: int) -> Features:
    """Return the features of a waveform that is mirrored at both ends, with values from -1 to 1."""
    mirrored = np.pad(np.asarray(samples, np.float32), FFT_SIZE // 2, mode="reflect")
    logarithms = _log10_mel(mirrored, num_mels)[:, : len(samples) // HOP_SIZE]
    return normalized(logarithms, float(logarithms.max()))


def normalized(logarithms: Features, largest: float) -> Features:
    """Return logarithms that are at most eight powers of ten below the largest, around 0."""
    return (np.maximum(logarithms, np.float32(largest - DYNAMIC_RANGE)) + np.float32(4.0)) / np.float32(4.0)


def _log10_mel(samples: np.ndarray, num_mels: int) -> Features:
    """Return the logarithms of every whole frame of samples."""
    frames = np.lib.stride_tricks.sliding_window_view(samples, FFT_SIZE)[::HOP_SIZE]
    spectrum = np.fft.rfft(frames * _hann_window(), axis=-1)
    power = np.square(spectrum.real) + np.square(spectrum.imag)
    return np.log10(np.maximum(mel_filters(num_mels) @ power.T, np.float32(MIN_POWER)))


@cache
def _hann_window() -> np.ndarray:
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FFT_SIZE) / FFT_SIZE)).astype(np.float32)


@cache
def mel_filters(num_mels: int) -> np.ndarray:
    """Return Slaney's triangular filters on his mel scale, from 0 to 8,000 Hz, as `[mel, frequency]`.

    Source: https://librosa.org/doc/0.11.0/generated/librosa.filters.mel.html
    """
    frequencies = np.linspace(0, SAMPLING_RATE / 2, FFT_SIZE // 2 + 1)
    edges = _frequency(np.linspace(0, _mel(SAMPLING_RATE / 2), num_mels + 2))
    slopes = edges[:, None] - frequencies
    widths = np.diff(edges)
    rising, falling = -slopes[:-2] / widths[:-1, None], slopes[2:] / widths[1:, None]
    filters = np.maximum(0, np.minimum(rising, falling))
    return (filters * (2 / (edges[2:] - edges[:-2]))[:, None]).astype(np.float32)


# Slaney's scale is linear up to 1,000 Hz, and then has 27 mels for each factor of 6.4.
_LINEAR_HZ, _BREAK_HZ, _STEP = 200 / 3, 1000.0, np.log(6.4) / 27


def _mel(frequency: float) -> float:
    return _BREAK_HZ / _LINEAR_HZ + np.log(frequency / _BREAK_HZ) / _STEP


def _frequency(mels: np.ndarray) -> np.ndarray:
    knee = _BREAK_HZ / _LINEAR_HZ
    return np.where(mels < knee, mels * _LINEAR_HZ, _BREAK_HZ * np.exp(_STEP * (mels - knee)))
