"""An audio file to samples, with FFmpeg; imported by a worker process alone, since the file's author is not trusted.

The format is recognized by its first bytes, so no demuxer for playlists, images or devices is ever tried, and nothing
is opened besides the bytes. What FFmpeg says of a file is dropped.

Source: https://ffmpeg.org/ffmpeg-formats.html#Format-Options (the lists of formats, codecs and protocols)
"""

import gc
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from service.errors import AudioTooLong, UnreadableAudio
from service.media.samples import HEADER, SAMPLE_BYTES, SAMPLING_RATE, header, read_sound, span_bytes
from service.media.voice_activity import VoiceActivity, speech_spans

if TYPE_CHECKING:
    import av
    from av.audio.codeccontext import AudioCodecContext
    from av.container import InputContainer

MIN_RATE, MAX_RATE = 4_000, 384_000  # samples a second
MAX_CHANNELS = 8
MAX_UNREADABLE_PACKETS = 1_000
# No value is larger in a file that is meant to be played.
MAX_MAGNITUDE = 1e6
CODECS = frozenset(
    {"aac", "alac", "flac", "mp3", "mp3float", "opus", "libopus", "vorbis", "libvorbis", "pcm_alaw", "pcm_mulaw"}
    | {f"pcm_{kind}le" for kind in ("s16", "s24", "s32", "f32", "f64")}
    | {"pcm_u8"}
)
NOTHING = "none"  # as the only entry of a list


class Format(NamedTuple):
    """A container, and the name of FFmpeg's demuxer for it."""

    offset: int
    magic: bytes
    demuxer: str


FORMATS = (
    Format(0, b"RIFF", "wav"),
    Format(0, b"fLaC", "flac"),
    Format(0, b"OggS", "ogg"),
    Format(0, b"\x1a\x45\xdf\xa3", "matroska"),
    Format(4, b"ftyp", "mov"),
    Format(0, b"ID3", "mp3"),
)
MPEG_SYNC_BYTES = frozenset(
    {0xF2, 0xF3, 0xFA, 0xFB}
)  # after 0xFF: layer III of MPEG 1 or 2, with or without a checksum


def decode_audio(content: bytes, max_s: float, activity: VoiceActivity | None = None) -> bytearray:
    """Return the samples of a file as `samples` describes them.

    Args:
        content: the file.
        max_s: the longest that it may play.
        activity: how to find where somebody speaks; None not to look.

    Raises:
        UnreadableAudio: it is no sound of a supported format.
        AudioTooLong: it plays longer than `max_s` seconds, whatever its header says.
    """
    import av
    from av import logging
    from av.error import FFmpegError

    # FFmpeg's graph of filters has a thread, and is part of a cycle: of every call before, it would keep 8 MB.
    gc.collect()
    demuxer = _demuxer(content)
    options = {
        "format_whitelist": demuxer,
        "codec_whitelist": ",".join(sorted(CODECS)),
        "protocol_whitelist": NOTHING,
    }
    logging.set_level(logging.PANIC)
    try:
        with av.open(io.BytesIO(content), mode="r", format=demuxer, options=options) as container:
            answer = _decoded(container, max_s)
    except (FFmpegError, ValueError) as error:  # PyAV's own, such as for channels that change while it plays
        raise UnreadableAudio("cannot be decoded") from error
    num_samples = (len(answer) - HEADER.size) // SAMPLE_BYTES
    if not num_samples:
        raise UnreadableAudio("has no sound that can be decoded")
    answer[: HEADER.size] = header(num_samples, None)
    if activity is not None:
        spans = speech_spans(read_sound(answer).samples, activity)
        answer[: HEADER.size] = header(num_samples, len(spans))
        answer += span_bytes(spans)
    return answer


def _demuxer(content: bytes) -> str:
    if not content:
        raise UnreadableAudio("is empty")
    for known in FORMATS:
        if content.startswith(known.magic, known.offset):
            return known.demuxer
    if content[0] == 0xFF and len(content) > 1 and content[1] in MPEG_SYNC_BYTES:
        return "mp3"
    raise UnreadableAudio("is of no supported format")


def _decoded(container: "InputContainer", max_s: float) -> bytearray:
    """Return room for a header and the samples of the first stream of sound, counted while they are decoded."""
    import av

    if any(not _is_picture(stream) for stream in container.streams.video):
        raise UnreadableAudio("is a video")
    if not container.streams.audio:
        raise UnreadableAudio("has no stream of sound")
    stream = container.streams.audio[0]
    _check(stream.codec_context)
    resampler = av.AudioResampler(format="s16", layout="mono", rate=SAMPLING_RATE)
    answer, seconds = bytearray(HEADER.size), 0.0
    for frame in _frames(container, stream):
        _check(stream.codec_context)
        if not MIN_RATE <= frame.sample_rate <= MAX_RATE or not 1 <= len(frame.layout.channels) <= MAX_CHANNELS:
            raise UnreadableAudio("changes its format while it plays")
        seconds += frame.samples / frame.sample_rate
        if seconds > max_s:
            raise AudioTooLong(max_s)
        if frame.format.name.startswith(("flt", "dbl")):
            _check_numbers(frame.to_ndarray())
        for part in resampler.resample(frame):
            answer += part.to_ndarray().tobytes()
    if seconds:
        for part in resampler.resample(None):
            answer += part.to_ndarray().tobytes()
    return answer


def _frames(container: "InputContainer", stream: "av.AudioStream") -> "Iterator[av.AudioFrame]":
    """Yield what can be decoded; as players do, leave out packets that cannot."""
    from av import error as av_errors

    num_unreadable = 0
    packets = container.demux(stream)
    while True:
        try:
            packet = next(packets)
            yield from packet.decode()
        except (StopIteration, av_errors.EOFError):
            return
        except (av_errors.FFmpegError, ValueError) as error:  # PyAV's own, for a codec that it does not know
            num_unreadable += 1
            if num_unreadable > MAX_UNREADABLE_PACKETS:
                raise UnreadableAudio("is damaged") from error


def _is_picture(stream: "av.VideoStream") -> bool:
    """Whether a stream is the cover of an album."""
    from av.stream import Disposition

    return bool(stream.disposition & Disposition.attached_pic)


def _check(codec: "AudioCodecContext | None") -> None:
    if codec is None or codec.name not in CODECS:
        raise UnreadableAudio("has a codec that is not supported")
    if not MIN_RATE <= codec.sample_rate <= MAX_RATE:
        raise UnreadableAudio(f"must have {MIN_RATE} to {MAX_RATE} samples a second")
    if not 1 <= codec.channels <= MAX_CHANNELS:
        raise UnreadableAudio(f"must have 1 to {MAX_CHANNELS} channels")


def _check_numbers(values: np.ndarray) -> None:
    if not (np.abs(values) <= MAX_MAGNITUDE).all():  # which is false for a NaN
        raise UnreadableAudio("has values that are no numbers, or too large")
