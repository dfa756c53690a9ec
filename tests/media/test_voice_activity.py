"""Where somebody speaks, compared with Silero's own network."""

from pathlib import Path

import numpy as np
import pytest

from service.media.samples import SAMPLING_RATE, SampleSpan
from service.media.speech_parts import JoinedSpeech, grouped
from service.media.voice_activity import STEP_SIZE, VoiceActivity, spans_of, speech_probs, speech_spans
from tests.media.audio_files import speech
from tests.media.signals import signals

FOLDER = Path(__file__).parent
TOLERANCE = 1e-3


RECORDINGS = {"speech": speech(), **signals()}


@pytest.fixture(scope="module")
def references():
    with np.load(FOLDER / "voice_activity_references.npz") as stored:
        return {name: stored[name] for name in stored.files}


@pytest.mark.parametrize("name", RECORDINGS)
def test_probabilities_are_those_of_the_published_network(references, name):
    assert speech_probs(RECORDINGS[name]) == pytest.approx(references[name], abs=TOLERANCE)


def test_both_sentences_are_found_and_nothing_else():
    spans = speech_spans(RECORDINGS["speech"], VoiceActivity(pad_s=0.0))
    seconds = [(span.begin / SAMPLING_RATE, span.end / SAMPLING_RATE) for span in spans]
    assert len(seconds) == 2
    assert seconds[0][0] == pytest.approx(1.0, abs=0.15)
    assert seconds[1][0] - seconds[0][1] == pytest.approx(3.0, abs=0.8)


@pytest.mark.parametrize("name", ["silence", "constant", "one-sample", "quiet-noise", "noise", "impulses"])
def test_nobody_speaks_in_silence_and_noise(name):
    assert speech_spans(RECORDINGS[name], VoiceActivity()) == []


def test_nothing_is_said_in_no_samples():
    assert speech_spans(np.zeros(0, np.int16), VoiceActivity()) == []


def test_probabilities_are_the_same_whatever_the_blocks():
    samples = np.tile(RECORDINGS["speech"], 8)
    first = speech_probs(samples[: 600 * STEP_SIZE])
    assert speech_probs(samples)[:600] == pytest.approx(first, abs=1e-6)


def test_a_short_silence_does_not_end_speech_and_a_long_one_does():
    activity = VoiceActivity(min_silence_s=0.5, pad_s=0.0)
    short, long = 10, 20  # steps of 32 ms
    probs = [0.9] * 5 + [0.0] * short + [0.4] + [0.9] * 5 + [0.0] * long + [0.9] * 5
    spans = spans_of(probs, len(probs) * STEP_SIZE, activity)
    assert spans == [
        SampleSpan(0, 21 * STEP_SIZE),
        SampleSpan(41 * STEP_SIZE, 46 * STEP_SIZE),
    ]


def test_padding_stays_in_the_recording_and_neighbours_share_what_is_between():
    activity = VoiceActivity(min_silence_s=0.2, pad_s=1.0)
    probs = [0.9] * 5 + [0.0] * 10 + [0.9] * 5
    spans = spans_of(probs, len(probs) * STEP_SIZE, activity)
    assert spans == [SampleSpan(0, 10 * STEP_SIZE), SampleSpan(10 * STEP_SIZE, 20 * STEP_SIZE)]


def test_times_of_joined_speech_are_found_again():
    samples = np.arange(10 * SAMPLING_RATE, dtype=np.int32).astype(np.int16)
    joined = JoinedSpeech(
        samples, [SampleSpan(SAMPLING_RATE, 3 * SAMPLING_RATE), SampleSpan(8 * SAMPLING_RATE, len(samples))]
    )
    assert len(joined.samples) == 4 * SAMPLING_RATE
    assert joined.original_s(0.5) == pytest.approx(1.5)
    assert joined.original_s(2.0) == pytest.approx(8.0)
    assert joined.original_s(2.0, is_end=True) == pytest.approx(3.0)
    assert joined.original_s(3.5) == pytest.approx(9.5)
    assert joined.original_s(9.0, is_end=True) == pytest.approx(15.0)


def test_nothing_is_joined_of_a_recording_without_speech():
    joined = JoinedSpeech(np.ones(100, np.int16), [])
    assert len(joined.samples) == 0
    assert joined.original_s(1.0) == 1.0


def test_neighbours_are_grouped_up_to_a_length():
    spans = [SampleSpan(0, 10), SampleSpan(20, 30), SampleSpan(35, 50), SampleSpan(100, 300), SampleSpan(301, 310)]
    assert grouped(spans, 50) == [SampleSpan(0, 50), SampleSpan(100, 300), SampleSpan(301, 310)]
    assert grouped(spans, 30) == [SampleSpan(0, 30), SampleSpan(35, 50), SampleSpan(100, 300), SampleSpan(301, 310)]
