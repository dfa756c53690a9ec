"""Sound is read as FFmpeg finds it, whatever the file begins with; what is not read is refused for its true reason."""

import random

import numpy as np
import pytest

from service.errors import AudioTooLong, UnreadableAudio
from service.media.decode import decode_audio
from service.media.samples import SAMPLING_RATE, read_sound
from tests.media.audio_files import ENCODERS, OTHER_ENCODERS, amr, audio_file, speech, tone, tracks, video, wav

SECOND = tone(1)
TAG = b"ID3\x04\x00\x00\x00\x00\x07\x00" + bytes(7 * 128)  # whose size is written in bytes of seven bits
BARE = {"id3v2_version": "0", "write_xing": "0"}
RUBBISH = {
    "zeros": bytes(5000),
    "noise": random.Random(56).randbytes(20_000),
    "a byte": b"x",
    "text": b"HTTP/1.1 200 OK\r\ncontent-type: audio/mpeg\r\n\r\n",
    "a tag": TAG,
    "two tags": TAG + TAG,
    "a tag and rubbish": TAG + b"rubbish",
    "the header of a wave file": b"RIFF\x00\x00\x00\x00WAVEdata",
}


def sound_of(content, max_s=60.0):
    return read_sound(decode_audio(content, max_s)).samples


def check_tone(content, seconds=1.0):
    samples = sound_of(content).astype(float)
    assert len(samples) == pytest.approx(seconds * SAMPLING_RATE, rel=0.2)
    spectrum = np.abs(np.fft.rfft(samples, SAMPLING_RATE))
    assert abs(int(spectrum.argmax()) - 440) <= 2
    assert np.abs(samples).max() == pytest.approx(12000, rel=0.35)


@pytest.mark.parametrize("kind", OTHER_ENCODERS)
def test_what_can_be_decoded_is_heard(kind):
    check_tone(audio_file(kind, SECOND))


@pytest.mark.parametrize("rate", [8000, 16000, 44100])
@pytest.mark.parametrize("rubbish", RUBBISH)
def test_an_mp3_of_every_version_is_found_behind_other_bytes(rate, rubbish):
    content = audio_file(f"mp3 of {rate} Hz", SECOND, options=BARE)
    assert content[0] == 0xFF
    check_tone(RUBBISH[rubbish] + content)
    check_tone(content + b"TAG" + bytes(125))


@pytest.mark.parametrize("kind", ["flac", "wav", "opus", "adts", "m4a", "aiff"])
def test_every_format_may_have_a_tag_before_it(kind):
    check_tone(TAG + audio_file(kind, SECOND))


@pytest.mark.parametrize("kind", ["matroska", "webm", "mp4", "mov", "mpeg", "3gp", "avi", "mpegts", "asf"])
def test_of_a_film_the_sound_is_heard(kind):
    check_tone(video(1, kind))


def test_amr_is_heard():
    assert len(sound_of(amr(50))) == SAMPLING_RATE


@pytest.mark.parametrize("kind", ["matroska", "mp4", "mov", "avi", "mpegts", "asf"])
def test_a_film_without_sound_says_so(kind):
    with pytest.raises(UnreadableAudio, match="has no sound track"):
        sound_of(video(1, kind, has_sound=False))


def test_an_encrypted_file_says_so():
    options = {"encryption_scheme": "cenc-aes-ctr", "encryption_key": "0" * 32, "encryption_kid": "1" * 32}
    content = audio_file("alac in mp4", SECOND, options=options)
    assert b"enca" in content
    with pytest.raises(UnreadableAudio, match="is encrypted"):
        sound_of(content)


def test_a_film_is_as_long_as_its_sound():
    with pytest.raises(AudioTooLong, match="limit of 1 seconds"):
        sound_of(video(2, "mp4"), max_s=1.0)


def test_of_many_tracks_the_first_is_heard():
    check_tone(tracks(200, SECOND))


def test_a_track_that_cannot_be_decoded_is_passed_over():
    content = tracks(2, SECOND)
    assert content.count(b"mp4a") >= 2
    first = content.index(b"mp4a")
    with pytest.raises(UnreadableAudio):
        sound_of(audio_file("m4a", SECOND).replace(b"mp4a", b"enca"))
    assert not sound_of(content[:first] + b"enca" + content[first + 4 :]).any()


@pytest.mark.parametrize("kind", [*ENCODERS, *OTHER_ENCODERS])
def test_a_truncated_file_is_heard_as_far_as_it_goes_or_says_why_not(kind):
    content = audio_file(kind, tone(4))
    half = content[: len(content) // 2]
    if (b"ftyp" in content[:12] and b"moov" not in half) or kind == "alac in caf":
        with pytest.raises(UnreadableAudio, match="missing"):
            sound_of(half)
    else:
        assert 0 < len(sound_of(half)) < 3.5 * SAMPLING_RATE


def stereo(first, second):
    return wav(np.stack([first, second], axis=1).astype("<i2").tobytes(), channels=2)


def test_channels_in_opposite_phase_are_heard():
    samples = sound_of(stereo(SECOND, -SECOND))
    assert np.abs(samples[SAMPLING_RATE // 100 :].astype(int) - SECOND[SAMPLING_RATE // 100 :]).max() <= 1
    spoken = speech()
    heard, plain = (sound_of(stereo(spoken, sign * spoken)).astype(float) for sign in (-1, 1))
    assert np.corrcoef(heard[1000:], plain[1000:])[0, 1] > 0.99


def test_a_part_in_opposite_phase_is_heard_too():
    long = tone(6)
    second = long.copy()
    second[2 * SAMPLING_RATE : 4 * SAMPLING_RATE] *= -1
    samples = sound_of(stereo(long, second)).astype(float)
    loudness = np.sqrt(np.square(samples.reshape(-1, SAMPLING_RATE // 10)).mean(axis=1))
    assert loudness.min() > 0.8 * loudness.max()


@pytest.mark.parametrize(("first", "second"), [(SECOND, SECOND), (SECOND, 0 * SECOND), (SECOND, tone(1, hertz=1000.0))])
def test_other_channels_are_averaged(first, second):
    expected = (first.astype(int) + second) / 2
    assert np.abs(sound_of(stereo(first, second)) - expected).max() <= 1


def test_channels_may_change_while_it_plays():
    mono, both = audio_file("mp3", SECOND, options=BARE), audio_file("mp3", SECOND, layout="stereo", options=BARE)
    check_tone(mono + both + mono, seconds=3.0)


@pytest.mark.parametrize(
    "content",
    [
        b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n",
        b"ffconcat version 1.0\nfile /etc/passwd\n",
        b"<?xml version='1.0'?><MPD xmlns='urn:mpeg:dash:schema:mpd:2011'><Period/></MPD>",
        b"[Subtitles]\n" * 100,
        b"%PDF-1.7\n" + bytes(5000),
        b"PK\x03\x04" + random.Random(7).randbytes(50_000),
    ],
)
def test_what_is_no_sound_is_of_no_supported_format(content):
    with pytest.raises(UnreadableAudio, match="is of no supported format"):
        sound_of(content)


@pytest.mark.parametrize("seed", range(4))
def test_noise_is_no_sound(seed):
    with pytest.raises(UnreadableAudio, match=r"is of no supported format|has no sound"):
        sound_of(random.Random(seed).randbytes(100_000))
