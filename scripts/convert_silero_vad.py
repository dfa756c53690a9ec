"""Write `service/media/silero_vad.npz` from the network that silero-vad publishes.

Run it in an environment with torch and numpy, on the wheel of silero-vad 6.2.3:
`python scripts/convert_silero_vad.py WHEEL`. The transform before the network is computed instead of read; it is a
Fourier transform with Hann's window.
"""

import hashlib
import io
import sys
import zipfile
from pathlib import Path

import numpy as np
import torch

MEMBER = "silero_vad/data/silero_vad.jit"
SHA256 = "e1122837f4154c511485fe0b9c64455f7b929c96fbb8d79fbdb336383ebd3720"
LICENSE = "silero_vad-6.2.3.dist-info/licenses/LICENSE"
FOLDER = Path(__file__).parents[1] / "service" / "media"
NAMES = {f"encoder.{layer}.reparam_conv": f"conv{layer + 1}" for layer in range(4)} | {
    "decoder.rnn": "lstm",
    "decoder.decoder.2": "output",
}


def main(wheel: str) -> None:
    """Write the weights, and their license."""
    with zipfile.ZipFile(wheel) as archive:
        content, license_text = archive.read(MEMBER), archive.read(LICENSE)
    if hashlib.sha256(content).hexdigest() != SHA256:
        raise SystemExit(f"{MEMBER} in {wheel} is not that of silero-vad 6.2.3")
    stored = torch.jit.load(io.BytesIO(content)).state_dict()
    weights = {}
    for name, tensor in stored.items():
        layer, _, parameter = name.removeprefix("_model.").rpartition(".")
        if layer in NAMES:
            weights[f"{NAMES[layer]}.{parameter}"] = tensor.numpy()
    np.savez(FOLDER / "silero_vad.npz", **weights)
    (FOLDER / "silero_vad.LICENSE.txt").write_bytes(license_text)


if __name__ == "__main__":
    main(sys.argv[1])
