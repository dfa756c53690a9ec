"""Write the log-mel features that the tests compare with, by openai-whisper and transformers.

Run it in an environment of its own: `pip install torch==2.13.0 openai-whisper==20250625 transformers==5.24.0`, then
`python tests/media/make_log_mel_references.py`. Signals are made by `signals` below; the file has some of the frames.
"""

from pathlib import Path

import numpy as np
import torch
from signals import signals
from transformers import WhisperFeatureExtractor
from whisper.audio import N_FRAMES, N_SAMPLES, log_mel_spectrogram, pad_or_trim

FILE = Path(__file__).with_name("log_mel_references.npz")
FRAMES = np.r_[0:12, 48:52, 95:105, 990:1000, 1490:1500, 2990:3000]


def main() -> None:
    """Write the features of each signal in both paddings and both numbers of mels."""
    arrays = {}
    for name, samples in signals().items():
        waveform = samples.astype(np.float32) / 32768.0
        for num_mels in (80, 128):
            whole = log_mel_spectrogram(torch.from_numpy(waveform), num_mels, padding=N_SAMPLES)
            content = whole[:, : min(N_FRAMES, whole.shape[-1] - N_FRAMES)]
            arrays[f"openai-{name}-{num_mels}"] = pad_or_trim(content, N_FRAMES).numpy()[:, FRAMES]
            extract = WhisperFeatureExtractor(feature_size=num_mels)
            features = extract(waveform, sampling_rate=16000, return_tensors="np").input_features[0]
            arrays[f"transformers-{name}-{num_mels}"] = features[:, FRAMES]
    np.savez_compressed(FILE, frames=FRAMES, **{name: value.astype(np.float32) for name, value in arrays.items()})


if __name__ == "__main__":
    main()
