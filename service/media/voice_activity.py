"""Voice activity detection with Silero's network, in the worker process that has decoded the file.

The weights in `silero_vad.npz` are those that silero-vad 6.2.3 uses for 16,000 samples a second (MIT,
`silero_vad.LICENSE.txt`); `scripts/convert_silero_vad.py` has made the file.

Source: https://github.com/snakers4/silero-vad/blob/v6.2/src/silero_vad/tinygrad_model.py (the same layers),
https://github.com/snakers4/silero-vad/blob/v6.2/src/silero_vad/utils_vad.py (get_speech_timestamps)
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from service.media.samples import SAMPLING_RATE, Samples, SampleSpan

WEIGHTS_FILE = Path(__file__).with_name("silero_vad.npz")
STEP_SIZE = 512  # samples, of each of which the network says how likely it is speech
CONTEXT_SIZE = 64  # samples before a step that it reads too
FFT_SIZE, HOP_SIZE = 256, 128
STEPS_AT_ONCE = 1024
FULL_SCALE = 32768.0
# Speech goes on until its probability is this much below that at which it begins.
HYSTERESIS = 0.15
MIN_END_THRESHOLD = 0.01
SATURATED = 80.0  # a sigmoid does not change beyond, and its exponential would overflow


@dataclass(frozen=True)
class VoiceActivity:
    """How speech is separated from silence; the defaults are faster-whisper's."""

    threshold: float = 0.5  # of the probability of speech
    min_silence_s: float = 2.0  # a shorter silence does not end speech
    pad_s: float = 0.4  # kept on both sides of speech


class _Weights(NamedTuple):
    """The parameters of the network, by layer."""

    convolutions: tuple[tuple[np.ndarray, np.ndarray, int], ...]  # [channel, input channel, tap], bias, stride
    input: np.ndarray  # [feature, gate]
    hidden: np.ndarray  # [feature, gate]
    gates_bias: np.ndarray
    output: np.ndarray  # [feature]
    output_bias: float


def speech_spans(samples: Samples, activity: VoiceActivity) -> list[SampleSpan]:
    """Return where somebody speaks, in order, in samples."""
    return spans_of(speech_probs(samples), len(samples), activity)


def speech_probs(samples: Samples) -> Float[np.ndarray, " step"]:
    """Return how likely each step of the samples is speech; the last step is completed by silence."""
    weights = _weights()
    hidden = cell = np.zeros(len(weights.hidden), np.float32)
    probs: list[float] = []
    for features in _features(samples, weights):
        for gates in features @ weights.input + weights.gates_bias:
            hidden, cell = _remembered(gates + hidden @ weights.hidden, cell)
            probs.append(float(_sigmoid(np.maximum(hidden, 0) @ weights.output + weights.output_bias)))
    return np.array(probs, np.float32)


def spans_of(probs: Iterable[float], num_samples: int, activity: VoiceActivity) -> list[SampleSpan]:
    """Return where somebody speaks, from how likely each step is speech."""
    end_threshold = max(activity.threshold - HYSTERESIS, MIN_END_THRESHOLD)
    min_silence = activity.min_silence_s * SAMPLING_RATE
    found: list[SampleSpan] = []
    begin = silent_from = None
    for step, prob in enumerate(probs):
        at = step * STEP_SIZE
        if prob >= activity.threshold:
            silent_from = None
            begin = at if begin is None else begin
        elif prob < end_threshold and begin is not None:
            silent_from = at if silent_from is None else silent_from
            if at - silent_from >= min_silence:
                found.append(SampleSpan(begin, silent_from))
                begin = silent_from = None
    if begin is not None:
        found.append(SampleSpan(begin, num_samples))
    return _padded(found, num_samples, int(activity.pad_s * SAMPLING_RATE))


def _padded(spans: list[SampleSpan], num_samples: int, pad: int) -> list[SampleSpan]:
    """Return spans that are longer on both sides; two that would overlap share what is between them."""
    edges = [-pad, *(edge for span in spans for edge in span), num_samples + pad]
    gaps = [after - before for before, after in zip(edges[::2], edges[1::2], strict=True)]
    before = [pad if gap >= 2 * pad else gap // 2 for gap in gaps]
    return [
        SampleSpan(max(0, span.begin - before[i]), min(num_samples, span.end + before[i + 1]))
        for i, span in enumerate(spans)
    ]


def _features(samples: Samples, weights: _Weights) -> Iterator[Float[np.ndarray, "step feature"]]:
    """Yield what the convolutions make of the steps, some of them at a time."""
    for begin in range(0, len(samples), STEPS_AT_ONCE * STEP_SIZE):
        before = samples[max(0, begin - CONTEXT_SIZE) : begin]
        part = samples[begin : begin + STEPS_AT_ONCE * STEP_SIZE]
        num_steps = -(-len(part) // STEP_SIZE)
        values = np.zeros(CONTEXT_SIZE + num_steps * STEP_SIZE, np.float32)
        values[CONTEXT_SIZE - len(before) : CONTEXT_SIZE] = before / np.float32(FULL_SCALE)
        values[CONTEXT_SIZE : CONTEXT_SIZE + len(part)] = part / np.float32(FULL_SCALE)
        steps = np.lib.stride_tricks.sliding_window_view(values, CONTEXT_SIZE + STEP_SIZE)[::STEP_SIZE]
        x = _spectrum(np.pad(steps, ((0, 0), (0, CONTEXT_SIZE)), mode="reflect"))
        for weight, bias, stride in weights.convolutions:
            x = _convolved(x, weight, bias, stride)
        yield x[:, 0]


def _spectrum(steps: Float[np.ndarray, "step sample"]) -> Float[np.ndarray, "step frame frequency"]:
    frames = np.lib.stride_tricks.sliding_window_view(steps, FFT_SIZE, axis=1)[:, ::HOP_SIZE]
    hann = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FFT_SIZE) / FFT_SIZE)).astype(np.float32)
    return np.abs(np.fft.rfft(frames * hann, axis=-1)).astype(np.float32)


def _convolved(
    x: Float[np.ndarray, "step frame channel"], weight: np.ndarray, bias: np.ndarray, stride: int
) -> Float[np.ndarray, "step frame channel"]:
    """Convolve frames with a kernel of three taps, and cut negative values."""
    padded = np.pad(x, ((0, 0), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, weight.shape[-1], axis=1)[:, ::stride]
    under = windows.reshape(*windows.shape[:2], -1)  # channel, tap
    return np.maximum(under @ weight.reshape(len(weight), -1).T + bias, 0)


def _remembered(gates: np.ndarray, cell: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the output and the memory of the LSTM, whose gates are input, forget, cell and output."""
    size = len(cell)
    opened = _sigmoid(gates)
    cell = opened[size : 2 * size] * cell + opened[:size] * np.tanh(gates[2 * size : 3 * size])
    return opened[3 * size :] * np.tanh(cell), cell


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(x, -SATURATED, SATURATED)))


@cache
def _weights() -> _Weights:
    with np.load(WEIGHTS_FILE, allow_pickle=False) as stored:
        arrays = {name: stored[name].astype(np.float32) for name in stored.files}
    strides = {"conv1": 1, "conv2": 2, "conv3": 2, "conv4": 1}
    return _Weights(
        convolutions=tuple(
            (arrays[f"{name}.weight"], arrays[f"{name}.bias"], stride) for name, stride in strides.items()
        ),
        input=np.ascontiguousarray(arrays["lstm.weight_ih"].T),
        hidden=np.ascontiguousarray(arrays["lstm.weight_hh"].T),
        gates_bias=arrays["lstm.bias_ih"] + arrays["lstm.bias_hh"],
        output=arrays["output.weight"].reshape(-1),
        output_bias=float(arrays["output.bias"][0]),
    )
