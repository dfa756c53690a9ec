"""Audio files that are written for tests, in memory."""

import io
import struct
from pathlib import Path

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


def speech() -> np.ndarray:
    """Return two spoken sentences, with a second of silence before them and three between."""
    with av.open(Path(__file__).with_name("speech.flac")) as container:
        return np.concatenate([frame.to_ndarray()[0] for frame in container.decode(audio=0)])


def tone(seconds: float, rate: int = SAMPLING_RATE, hertz: float = 440.0) -> np.ndarray:
    """Return a tone of 16-bit samples."""
    return (12000 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype(np.int16)


def audio_file(kind: str, samples: np.ndarray, rate: int = SAMPLING_RATE, *, layout: str = "mono") -> bytes:
    """Return a file of this kind, the same samples in all channels."""
    container_format, codec = ENCODERS[kind]
    output = io.BytesIO()
    with av.open(output, "w", format=container_format) as container:
        stream = container.add_stream(codec, rate=48000 if "opus" in codec else rate, layout=layout)
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


def video(seconds: float = 0.2) -> bytes:
    """Return a film with sound."""
    output = io.BytesIO()
    with av.open(output, "w", format="matroska") as container:
        pictures = container.add_stream("mpeg4", rate=10)
        pictures.width, pictures.height, pictures.pix_fmt = 64, 48, "yuv420p"
        sound = container.add_stream("pcm_s16le", rate=SAMPLING_RATE, layout="mono")
        for _ in range(int(10 * seconds)):
            picture = av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), format="rgb24")
            container.mux(pictures.encode(picture))
        container.mux(pictures.encode(None))
        frame = av.AudioFrame.from_ndarray(tone(seconds)[None], format="s16", layout="mono")
        frame.sample_rate = SAMPLING_RATE
        container.mux(sound.encode(frame))
        container.mux(sound.encode(None))
    return output.getvalue()
