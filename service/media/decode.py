"""An audio file to samples, with FFmpeg; imported only by a worker process, since the file's author is not trusted.

FFmpeg finds the format by trying what it knows, and opens it only if it is one of `DEMUXERS`: none for playlists,
images or devices. Of a film, only the sound is decoded. Nothing is opened besides the bytes. What FFmpeg says of a
file is dropped.

Source: https://ffmpeg.org/ffmpeg-formats.html#Format-Options (the lists of formats, codecs and protocols)
"""

import gc
import io
import re
from collections.abc import Iterable, Iterator, Set
from typing import TYPE_CHECKING, Any

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
# By their names in FFmpeg: what may be opened (T18).
DEMUXERS = (
    *("aac", "aiff", "amr", "asf", "au", "avi", "caf", "flac", "matroska", "mov", "mp3", "mpeg", "mpegts", "ogg"),
    *("w64", "wav"),
)
TOLERANT = "mp3"  # the demuxer that finds its frames behind other bytes
CODECS = frozenset(
    {"aac", "aac_latm", "ac3", "alac", "amrnb", "amrwb", "eac3", "flac", "gsm", "gsm_ms", "opus", "libopus", "vorbis"}
    | {"mp1", "mp1float", "mp2", "mp2float", "mp3", "mp3float", "pcm_alaw", "pcm_mulaw", "pcm_s8", "pcm_u8"}
    | {"wmalossless", "wmapro", "wmav1", "wmav2", "wmavoice"}
    | {f"adpcm_{kind}" for kind in ("g722", "g726", "g726le", "ima_qt", "ima_wav", "ms", "yamaha")}
    | {f"pcm_{kind}{order}" for kind in ("s16", "s24", "s32", "f32", "f64") for order in ("le", "be")}
)
ID3_HEAD_BYTES = 10
ENCRYPTED = (b"aavd", b"drms", b"enca")  # what an mp4 calls the formats of such tracks
ASF = bytes.fromhex("3026b2758e66cf11")  # the first half of its header's identifier
# What files of formats that are no bare frames begin with.
STARTS = (b"RIFF", b"RF64", b"FORM", b"caff", b"OggS", b"fLaC", b"\x1a\x45\xdf\xa3", b"#!AMR", b".snd", b"riff", ASF)
NOTHING = "none"  # as the only entry of a list
BLOCK_SIZE = SAMPLING_RATE // 2  # samples of a stereo recording that are mixed alike
FADE_SIZE = SAMPLING_RATE // 100
# How many times louder the difference of two channels must be than their sum for them to be in opposite phase.
OPPOSITE_RATIO = 4.0


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
    from av import logging

    if not content:
        raise UnreadableAudio("is empty")
    # FFmpeg's graph of filters has a thread, and is part of a cycle: of every call before, it would keep 8 MB.
    gc.collect()
    logging.set_level(logging.PANIC)
    answer = _read(content, max_s)
    num_samples = (len(answer) - HEADER.size) // SAMPLE_BYTES
    if not num_samples:
        raise UnreadableAudio("has no sound that can be decoded")
    answer[: HEADER.size] = header(num_samples, None)
    if activity is not None:
        spans = speech_spans(read_sound(answer).samples, activity)
        answer[: HEADER.size] = header(num_samples, len(spans))
        answer += span_bytes(spans)
    return answer


def _read(content: bytes, max_s: float) -> bytearray:
    """Return room for a header and the samples, of the format that FFmpeg finds, else of one behind other bytes."""
    import av
    from av.error import FFmpegError

    options = {
        "format_whitelist": ",".join(DEMUXERS),
        "codec_whitelist": ",".join(sorted(CODECS)),
        "protocol_whitelist": NOTHING,
    }
    is_known = content[4:8] == b"ftyp" or content.startswith(STARTS)
    failure = UnreadableAudio("is damaged, or a part of it is missing" if is_known else "is of no supported format")
    if content[4:8] == b"ftyp" and b"moov" not in content:
        raise UnreadableAudio("ends before its index, so a part of the file is missing")
    untagged = _untagged(content)
    attempts = [(content, None), (untagged, None), (content, TOLERANT)]
    for file, demuxer in attempts if len(untagged) < len(content) else attempts[::2]:
        try:
            with av.open(io.BytesIO(file), mode="r", format=demuxer, options=options) as container:
                answer = _decoded(container, max_s, _encrypted(file))
        except (FFmpegError, ValueError):  # PyAV's own, too
            continue
        except UnreadableAudio as error:
            if is_known:
                raise
            failure = error
            continue
        if len(answer) > HEADER.size:
            return answer
        failure = UnreadableAudio("has no sound that can be decoded")
    raise failure


def _untagged(content: bytes) -> bytes:
    """Return a file without the ID3 tags that some programs write before every format.

    Source: https://id3.org/id3v2.4.0-structure (header)
    """
    start = 0
    while content[start : start + 3] == b"ID3" and len(content) >= start + ID3_HEAD_BYTES:
        size = 0
        for byte in content[start + 6 : start + ID3_HEAD_BYTES]:
            size = size << 7 | byte & 0x7F
        start += ID3_HEAD_BYTES + size
    return content[start:]


def _encrypted(content: bytes) -> frozenset[int]:
    """Return which tracks of an mp4 are encrypted, by their number.

    Source: ISO/IEC 14496-12, 8.5.2 (stsd), 8.12 (enca)
    """
    formats = re.findall(rb"stsd.{12}(....)", content, re.DOTALL) if content[4:8] == b"ftyp" else []
    return frozenset(number for number, name in enumerate(formats) if name in ENCRYPTED)


def _decoded(container: "InputContainer", max_s: float, encrypted: Set[int]) -> bytearray:
    """Return room for a header and the samples of the first readable stream of sound, counted while it is decoded."""
    stream = _stream(container, encrypted)
    answer, mixer, seconds = bytearray(HEADER.size), _Mixer(), 0.0
    for frame in _frames(container, stream):
        if not MIN_RATE <= frame.sample_rate <= MAX_RATE or not 1 <= len(frame.layout.channels) <= MAX_CHANNELS:
            raise UnreadableAudio("changes its format while it plays")
        seconds += frame.samples / frame.sample_rate
        if seconds > max_s:
            raise AudioTooLong(max_s)
        if frame.format.name.startswith(("flt", "dbl")):
            _check_numbers(frame.to_ndarray())
        answer += mixer.push(frame)
    answer += mixer.end()
    return answer


def _stream(container: "InputContainer", encrypted: Set[int]) -> "av.AudioStream":
    """Return the first stream of sound that can be decoded; raises UnreadableAudio for none."""
    streams = container.streams.audio
    if not streams:
        raise UnreadableAudio("has no sound track")
    failure = None
    for stream in streams:
        try:
            if stream.index in encrypted:
                raise UnreadableAudio("is encrypted")
            _check(stream.codec_context)
        except UnreadableAudio as error:
            failure = failure or error
        else:
            return stream
    assert failure is not None
    raise failure


class _Mixer:
    """Frames to samples of one channel.

    Two channels are averaged, but where they are in opposite phase, which would be silence: there the second is turned
    round.
    """

    def __init__(self) -> None:
        self._form: tuple[Any, ...] = ()
        self._resampler: av.AudioResampler | None = None
        self._num_channels = 1
        self._waiting: list[np.ndarray] = []  # less than a block
        self._sign = 1  # of the second channel

    def push(self, frame: "av.AudioFrame") -> bytes:
        """Return the samples that a frame completes."""
        import av

        ended, form = b"", (frame.format.name, frame.layout.name, frame.sample_rate)
        if form != self._form:
            ended, self._form = self.end(), form
            self._num_channels = min(2, len(frame.layout.channels))
            layout = "mono" if self._num_channels == 1 else "stereo"
            self._resampler = av.AudioResampler(format="s16", layout=layout, rate=SAMPLING_RATE)
        assert self._resampler is not None
        return ended + self._mixed(self._resampler.resample(frame), is_last=False)

    def end(self) -> bytes:
        """Return the samples that are left."""
        return b"" if self._resampler is None else self._mixed(self._resampler.resample(None), is_last=True)

    def _mixed(self, frames: "Iterable[av.AudioFrame]", *, is_last: bool) -> bytes:
        parts = [frame.to_ndarray().reshape(-1, self._num_channels) for frame in frames]
        if self._num_channels == 1:
            return b"".join(part.tobytes() for part in parts)
        self._waiting += parts
        if not is_last and sum(map(len, self._waiting)) < BLOCK_SIZE:
            return b""
        waiting = np.concatenate([np.zeros((0, 2), np.int16), *self._waiting])
        num_whole = len(waiting) if is_last else len(waiting) // BLOCK_SIZE * BLOCK_SIZE
        self._waiting = [waiting[num_whole:]]
        return b"".join(self._block(waiting[start : start + BLOCK_SIZE]) for start in range(0, num_whole, BLOCK_SIZE))

    def _block(self, samples: np.ndarray) -> bytes:
        first, second = samples.astype(np.float32).T
        summed, apart = float(np.square(first + second).sum()), float(np.square(first - second).sum())
        before = self._sign
        if self._sign == 1 and apart > OPPOSITE_RATIO * summed:
            self._sign = -1
        elif self._sign == -1 and summed > OPPOSITE_RATIO * apart:
            self._sign = 1
        signs = np.full(len(first), self._sign, np.float32)
        if before != self._sign:
            fade = signs[:FADE_SIZE]
            fade[:] = np.linspace(before, self._sign, len(fade))
        return np.rint((first + signs * second) / 2).astype("<i2").tobytes()


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


def _check(codec: "AudioCodecContext | None") -> None:
    if codec is None or codec.name not in CODECS:
        raise UnreadableAudio("has a codec that is not supported")
    if not codec.sample_rate or not codec.channels:
        raise UnreadableAudio("has no sound that can be decoded")
    if not MIN_RATE <= codec.sample_rate <= MAX_RATE:
        raise UnreadableAudio(f"must have {MIN_RATE} to {MAX_RATE} samples a second")
    if not 1 <= codec.channels <= MAX_CHANNELS:
        raise UnreadableAudio(f"must have 1 to {MAX_CHANNELS} channels")


def _check_numbers(values: np.ndarray) -> None:
    if not (np.abs(values) <= MAX_MAGNITUDE).all():  # which is false for a NaN
        raise UnreadableAudio("has values that are no numbers, or too large")
