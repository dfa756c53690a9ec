"""Audio files that are written for tests, in memory."""

import io
import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import av
import numpy as np

from service.media.samples import SAMPLING_RATE

ENCODERS = {
    "wav": ("wav", "pcm_s16le"),
    "flac": ("flac", "flac"),
    "mp3": ("mp3", "libmp3lame"),
    "m4a": ("ipod", "aac"),
    "opus": ("ogg", "libopus"),
    "webm": ("webm", "libopus"),
}
# Formats that need no name of their own here, with a rate that their codecs take.
OTHER_ENCODERS = {
    **{f"mp3 of {rate} Hz": ("mp3", "libmp3lame", rate) for rate in (8000, 11025, 12000, 16000, 22050, 24000, 44100)},
    "adts": ("adts", "aac", 16000),
    "aiff": ("aiff", "pcm_s16be", 16000),
    "aiff of 24 bits": ("aiff", "pcm_s24be", 16000),
    "au": ("au", "pcm_mulaw", 8000),
    "caf": ("caf", "pcm_s16be", 16000),
    "alac in caf": ("caf", "alac", 16000),
    "w64": ("w64", "pcm_s16le", 16000),
    "μ-law in wav": ("wav", "pcm_mulaw", 8000),
    "A-law in wav": ("wav", "pcm_alaw", 8000),
    "ADPCM of Microsoft in wav": ("wav", "adpcm_ms", 16000),
    "ADPCM of IMA in wav": ("wav", "adpcm_ima_wav", 16000),
    "mp3 in wav": ("wav", "libmp3lame", 16000),
    "mov": ("mov", "pcm_s16be", 16000),
    "alac in mp4": ("mp4", "alac", 16000),
    "opus in mp4": ("mp4", "libopus", 48000),
    "3gp": ("3gp", "aac", 16000),
    "AC-3 in matroska": ("matroska", "ac3", 44100),
    "mp2": ("mp2", "mp2", 44100),
    "mpeg": ("mpeg", "mp2", 44100),
    "aac in mpegts": ("mpegts", "aac", 44100),
    "mp2 in mpegts": ("mpegts", "mp2", 44100),
    "mp3 in avi": ("avi", "libmp3lame", 44100),
    "pcm in avi": ("avi", "pcm_s16le", 16000),
    "wma": ("asf", "wmav2", 44100),
    "wma 1": ("asf", "wmav1", 44100),
}


def speech() -> np.ndarray:
    """Return two spoken sentences, with a second of silence before them and three between."""
    with av.open(Path(__file__).with_name("speech.flac")) as container:
        return np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)])


def tone(seconds: float, rate: int = SAMPLING_RATE, hertz: float = 440.0) -> np.ndarray:
    """Return a tone of 16-bit samples."""
    return (12000 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype(np.int16)


def audio_file(
    kind: str,
    samples: np.ndarray,
    rate: int = SAMPLING_RATE,
    *,
    layout: str = "mono",
    options: Mapping[str, str] = MappingProxyType({}),
) -> bytes:
    """Return a file of this kind, the same samples in all channels, with options of its muxer."""
    if kind in OTHER_ENCODERS:
        container_format, codec, codec_rate = OTHER_ENCODERS[kind]
    else:
        container_format, codec = ENCODERS[kind]
        codec_rate = 48000 if "opus" in codec else rate
    output = io.BytesIO()
    with av.open(output, "w", format=container_format, options=dict(options)) as container:
        stream = container.add_stream(codec, rate=codec_rate, layout=layout)
        if codec.startswith("wma"):  # which has no default
            stream.bit_rate = 64_000
        resampler = av.AudioResampler(
            format=stream.format, layout=layout, rate=stream.rate, frame_size=stream.codec_context.frame_size or None
        )
        frame = av.AudioFrame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate = rate
        for part in [*resampler.resample(frame), *resampler.resample(None)]:
            part.pts = None
            container.mux(stream.encode(part))
        container.mux(stream.encode(None))
    return output.getvalue()


def wav(
    data: bytes,
    *,
    rate: int = SAMPLING_RATE,
    channels: int = 1,
    bits: int = 16,
    kind: int = 1,
    length: int | None = None,
) -> bytes:
    """Return a wave file of these bytes, with a header that may say anything."""
    width = channels * bits // 8
    length = len(data) if length is None else length
    form = struct.pack("<HHIIHH", kind, channels, rate, rate * width & 0xFFFFFFFF, width & 0xFFFF, bits)
    return (
        b"RIFF"
        + struct.pack("<I", (36 + length) & 0xFFFFFFFF)
        + b"WAVEfmt "
        + struct.pack("<I", 16)
        + form
        + (b"data" + struct.pack("<I", length) + data)
    )


def video(seconds: float = 0.2, kind: str = "matroska", *, has_sound: bool = True) -> bytes:
    """Return a film."""
    output = io.BytesIO()
    with av.open(output, "w", format=kind) as container:
        pictures = container.add_stream("libvpx" if kind == "webm" else "mpeg4", rate=10)
        pictures.width, pictures.height, pictures.pix_fmt = 64, 48, "yuv420p"
        sound = None
        if has_sound:
            codec, rate = {"webm": ("libopus", 48000), "mpeg": ("mp2", 44100)}.get(kind, ("aac", SAMPLING_RATE))
            sound = container.add_stream(codec, rate=rate, layout="mono")
        for _ in range(int(10 * seconds)):
            picture = av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), format="rgb24")
            container.mux(pictures.encode(picture))
        container.mux(pictures.encode(None))
        if sound is not None:
            frame = av.AudioFrame.from_ndarray(tone(seconds)[None], format="s16", layout="mono")
            frame.sample_rate = SAMPLING_RATE
            size = sound.codec_context.frame_size or None
            resampler = av.AudioResampler(format=sound.format, layout="mono", rate=sound.rate, frame_size=size)
            for part in [*resampler.resample(frame), *resampler.resample(None)]:
                part.pts = None
                container.mux(sound.encode(part))
            container.mux(sound.encode(None))
    return output.getvalue()


def tracks(count: int, samples: np.ndarray) -> bytes:
    """Return an mp4 with several tracks of sound, of which the first has the samples."""
    output = io.BytesIO()
    with av.open(output, "w", format="mp4") as container:
        streams = [container.add_stream("aac", rate=SAMPLING_RATE, layout="mono") for _ in range(count)]
        for number, stream in enumerate(streams):
            values = samples if number == 0 else np.zeros(4096, np.int16)
            frame = av.AudioFrame.from_ndarray(values[None], format="s16", layout="mono")
            frame.sample_rate = SAMPLING_RATE
            resampler = av.AudioResampler(format=stream.format, layout="mono", rate=stream.rate, frame_size=1024)
            for part in [*resampler.resample(frame), *resampler.resample(None)]:
                part.pts = None
                container.mux(stream.encode(part))
            container.mux(stream.encode(None))
    return output.getvalue()


def amr(num_frames: int) -> bytes:
    """Return an AMR file of frames of 20 ms, at the lowest rate."""
    return b"#!AMR\n" + (b"\x04" + bytes(range(1, 13))) * num_frames
