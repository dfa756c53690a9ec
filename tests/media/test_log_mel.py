"""Log-mel features, against those of openai-whisper and transformers."""

from pathlib import Path

import numpy as np
import pytest

from service.media.log_mel import Recording, log_mel
from tests.media.signals import signals

REFERENCES = np.load(Path(__file__).with_name("log_mel_references.npz"))
FRAMES = REFERENCES["frames"]
SIGNALS = signals()
WINDOW_FRAMES = 3000
BOUND = 1e-4


def recording(name, num_mels=80):
    return Recording(SIGNALS[name], num_mels=num_mels, window_frames=WINDOW_FRAMES)


@pytest.mark.parametrize("num_mels", [80, 128])
@pytest.mark.parametrize("name", SIGNALS)
def test_the_first_window_has_the_features_of_openai_whisper(name, num_mels):
    made = recording(name, num_mels)
    features = made.window(0, min(WINDOW_FRAMES, made.num_frames))
    assert np.abs(features[:, FRAMES] - REFERENCES[f"openai-{name}-{num_mels}"]).max() <= BOUND


@pytest.mark.parametrize("num_mels", [80, 128])
@pytest.mark.parametrize("name", SIGNALS)
def test_a_waveform_that_is_padded_with_silence_has_the_features_of_transformers(name, num_mels):
    padded = np.zeros(WINDOW_FRAMES * 160, np.float32)
    padded[: len(SIGNALS[name])] = SIGNALS[name][: len(padded)] / np.float32(32768)
    features = log_mel(padded, num_mels)
    assert np.abs(features[:, FRAMES] - REFERENCES[f"transformers-{name}-{num_mels}"]).max() <= BOUND


@pytest.mark.parametrize("begin", [1, 2, 137, 999])
def test_a_frame_is_the_same_in_every_window(begin):
    made = recording("voice")
    whole = made.window(0, made.num_frames)
    part = made.window(begin, made.num_frames - begin)
    np.testing.assert_array_equal(part[:, : made.num_frames - begin], whole[:, begin : made.num_frames])
    assert not part[:, made.num_frames - begin :].any()


def test_it_plays_as_long_as_its_samples():
    assert recording("impulses").duration_s == pytest.approx(10 + 77 / 16000)
