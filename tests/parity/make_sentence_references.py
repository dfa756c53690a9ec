"""Makes the reference vectors with sentence-transformers on torch, in an environment of its own.

    python3.11 -m venv /tmp/torch && /tmp/torch/bin/pip install torch sentence-transformers numpy
    PYTHONPATH=. /tmp/torch/bin/python -m tests.parity.make_sentence_references

The service never imports torch; what this writes is committed. Each text is encoded alone, so none is padded.
"""

import numpy as np
import sentence_transformers
import torch

from tests.parity.sentences import REFERENCE, TEXTS, minilm


def main() -> None:
    """Write the vectors, [text, vector]."""
    model = sentence_transformers.SentenceTransformer(str(minilm()), device="cpu")
    vectors = np.concatenate([model.encode([text]) for text in TEXTS])
    versions = {"sentence_transformers": sentence_transformers.__version__, "torch": torch.__version__}
    np.savez_compressed(REFERENCE, vectors=vectors.astype(np.float32), **versions)


if __name__ == "__main__":
    main()
