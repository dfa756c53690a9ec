"""Audio files to samples, in a worker process: every format, and files that are hostile."""

import random
import struct

import numpy as np
import psutil
import pytest

from service.errors import AudioTooLaborious, AudioTooLong, UnreadableAudio
from service.media.decode import decode_audio
from service.media.samples import SAMPLING_RATE, SampleSpan, header, read_sound, span_bytes
from service.media.voice_activity import VoiceActivity
from service.worker.process import WorkerProcess
from tests.media.audio_files import ENCODERS, audio_file, speech, tone, wav

ANSWERS = (b"", b"PCM2", header(2, None), header(1, None) + bytes(3), header(1, 1) + bytes(2), b"\x80\x04" + bytes(40))
MAX_S = 60.0
SECOND = tone(1)


@pytest.fixture(scope="module")
def process():
    made = WorkerProcess(failure=AudioTooLaborious, memory_bytes=2**29, processor_s=20.0, max_answer_bytes=4 * 2**20)
    yield made
    made.end()


def decode(process, content, max_s=MAX_S):
    return read_sound(process.call(decode_audio, content, max_s).content).samples


@pytest.mark.parametrize("kind", ENCODERS)
def test_every_format_sounds_as_what_was_written(process, kind):
    samples = decode(process, audio_file(kind, SECOND))
    assert len(samples) == pytest.approx(SAMPLING_RATE, rel=0.15)
    spectrum = np.abs(np.fft.rfft(samples[:SAMPLING_RATE].astype(float), SAMPLING_RATE))
    assert abs(int(spectrum.argmax()) - 440) <= 2


@pytest.mark.parametrize("kind", ["wav", "flac"])
def test_lossless_formats_give_the_samples_that_were_written(process, kind):
    np.testing.assert_array_equal(decode(process, audio_file(kind, SECOND)), SECOND)


def test_other_rates_are_resampled(process):
    assert len(decode(process, audio_file("wav", tone(1, 44100), 44100))) == pytest.approx(SAMPLING_RATE, abs=1)


def test_channels_are_mixed(process):
    both = np.stack([SECOND, np.zeros_like(SECOND)], axis=1)
    mixed = decode(process, wav(both.tobytes(), channels=2))
    assert np.abs(mixed).max() == pytest.approx(np.abs(SECOND).max() / 2, rel=0.05)


def test_a_truncated_file_is_decoded_as_far_as_it_goes(process):
    whole = audio_file("mp3", tone(4))
    assert 0 < len(decode(process, whole[: len(whole) // 2])) < 3 * SAMPLING_RATE


def test_a_header_that_promises_more_is_not_believed(process):
    assert len(decode(process, wav(SECOND.tobytes(), length=2**31))) == SAMPLING_RATE


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"hello, world", "format"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "format"),
        (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n", "format"),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", "format"),
        (b"GIF89a" + bytes(100), "format"),
        (b"ID3 this is text that calls itself an mp3", "format"),
        (b"RIFF" + bytes(40), "damaged"),
        (b"OggS" + bytes(40), "damaged|no sound"),
        (struct.pack(">I", 24) + b"ftypM4A " + bytes(60), "part of the file is missing"),
        (wav(b""), "no sound|decoded"),
        (wav(SECOND.tobytes(), rate=1), "samples a second"),
        (wav(SECOND.tobytes(), rate=768_000), "samples a second"),
        (wav(SECOND.tobytes(), channels=255), "channels|decoded"),
        (wav(SECOND.tobytes(), channels=0), "channels|decoded"),
        (wav(np.full(9000, np.nan, "<f4").tobytes(), bits=32, kind=3), "no numbers"),
        (wav(np.full(9000, np.inf, "<f4").tobytes(), bits=32, kind=3), "no numbers"),
        (wav(bytes(9000), kind=0x270, bits=16), "codec|decoded"),
    ],
)
def test_other_content_is_refused_with_its_reason(process, content, reason):
    with pytest.raises(UnreadableAudio, match=reason) as refused:
        decode(process, content)
    assert refused.value.param == "file"
    assert len(str(refused.value)) < 200


def test_samples_are_counted_while_they_are_decoded(process):
    quiet = audio_file("opus", np.zeros(SAMPLING_RATE * 120, np.int16))
    assert len(quiet) < 60_000
    with pytest.raises(AudioTooLong, match="60 seconds"):
        decode(process, quiet)


def test_no_mutated_file_ends_the_process(process):
    decode(process, audio_file("wav", SECOND))
    starts, chance = process.num_starts, random.Random(37)
    files = [audio_file(kind, tone(0.3)) for kind in ENCODERS]
    for number in range(140):
        content = bytearray(files[number % len(files)])
        for _ in range(chance.randrange(1, 30)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        try:
            decode(process, bytes(content))
        except (UnreadableAudio, AudioTooLong):
            continue
    assert process.num_starts == starts


def test_a_file_leaves_no_memory_behind(process):
    content = audio_file("wav", SECOND)
    sizes = []
    for _ in range(20):
        decode(process, content)
        sizes.append(psutil.Process(process.pid).memory_info().data)
    assert sizes[-1] - sizes[1] < 2**25


@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_that_does_not_fit_its_header_is_not_read(answer):
    with pytest.raises(ValueError, match="header"):
        read_sound(answer)


def test_spans_that_are_not_in_the_samples_are_not_read():
    for span in ((5, 2), (0, 3)):
        answer = header(2, 1) + bytes(4) + span_bytes([SampleSpan(*span)])
        with pytest.raises(ValueError, match="spans"):
            read_sound(answer)


def test_speech_is_looked_for_where_it_is_asked_for(process):
    file = audio_file("flac", np.concatenate([tone(1), speech(), tone(1)]))
    sound = read_sound(process.call(decode_audio, file, MAX_S, VoiceActivity()).content)
    assert len(sound.speech) == 2
    assert len(sound.samples) == len(speech()) + 2 * SAMPLING_RATE
    assert read_sound(process.call(decode_audio, file, MAX_S).content).speech is None
