"""Write `speech.flac`, two sentences with silence around them, and what Silero's network says of it and of the signals.

Run it in an environment of its own with `pip install torch==2.13.0 av` and espeak-ng, as
`python tests/media/make_speech.py silero_vad.jit`, the file of that name from the wheel of silero-vad 6.2.3.
"""

import io
import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import torch
from signals import RATE, signals

FOLDER = Path(__file__).parent
SENTENCES = (("en-us", "The quick brown fox jumps over the lazy dog."), ("en-us+f3", "Seven, four, alpha."))
STEP_SIZE = 512


def spoken(voice: str, text: str) -> np.ndarray:
    content = subprocess.run(["espeak-ng", "-v", voice, "--stdout", text], check=True, capture_output=True).stdout
    resampler = av.AudioResampler(format="s16", layout="mono", rate=RATE)
    with av.open(io.BytesIO(content)) as container:
        parts = [part.to_ndarray()[0] for frame in container.decode(audio=0) for part in resampler.resample(frame)]
    return np.concatenate([*parts, *(part.to_ndarray()[0] for part in resampler.resample(None))])


def main(network_file: str) -> None:
    """Write both files."""
    first, second = (spoken(*sentence) for sentence in SENTENCES)
    speech = np.concatenate([np.zeros(RATE, np.int16), first, np.zeros(3 * RATE, np.int16), second])
    with av.open(FOLDER / "speech.flac", "w") as container:
        stream = container.add_stream("flac", rate=RATE, layout="mono", format="s16")
        frame = av.AudioFrame.from_ndarray(speech[None], format="s16", layout="mono")
        frame.sample_rate = RATE
        for packet in (*stream.encode(frame), *stream.encode(None)):
            container.mux(packet)
    network = torch.jit.load(network_file)
    probs = {}
    for name, samples in {"speech": speech, **signals()}.items():
        network.reset_states()
        padded = np.pad(samples, (0, -len(samples) % STEP_SIZE)).astype(np.float32) / 32768
        steps = torch.from_numpy(padded).split(STEP_SIZE)
        with torch.no_grad():
            probs[name] = np.array([network(step, RATE).item() for step in steps], np.float32)
    np.savez_compressed(FOLDER / "voice_activity_references.npz", **probs)


if __name__ == "__main__":
    main(sys.argv[1])
