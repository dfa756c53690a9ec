"""Makes the vectors of published encoders with sentence-transformers on torch, in an environment of its own.

    python3.11 -m venv /tmp/torch && /tmp/torch/bin/pip install torch sentence-transformers numpy
    PYTHONPATH=. /tmp/torch/bin/python -m tests.parity.make_published_references [NAME …]

The service never imports torch; what this writes is committed. Each text is encoded alone, so none is padded.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import sentence_transformers
import torch
import transformers
from safetensors.numpy import save_file

from tests.parity.encoder_cases import tensor
from tests.parity.published_encoders import (
    PAIRS,
    PUBLISHED_ENCODERS,
    REFERENCES,
    TEXTS,
    PublishedEncoder,
    dense_tensors,
    write_files,
)

WIDE = {"dtype": torch.float32}  # whatever type the files name


def write_model(folder: Path, case: PublishedEncoder) -> None:
    """Write a folder that sentence-transformers loads, with the weights of its modules."""
    config = write_files(folder, case)
    values = {key: value for key, value in config.items() if key not in {"model_type", "auto_map"}}
    auto = transformers.AutoModelForSequenceClassification if case.is_reranker else transformers.AutoModel
    model = auto.from_config(transformers.AutoConfig.for_model(config["model_type"], **values))
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    save_file(
        {name: tensor(name, shape) for name, shape in shapes.items()}, folder / "model.safetensors", {"format": "pt"}
    )
    for path, tensors in dense_tensors(case).items():
        save_file(tensors, folder / path / "model.safetensors", {"format": "pt"})


def reference(case: PublishedEncoder) -> np.ndarray:
    """Return the vectors of the texts, without a prompt and then with one, or the scores of the pairs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_model(folder, case)
        if case.is_reranker:
            scorer = sentence_transformers.CrossEncoder(str(folder), device="cpu", model_kwargs=WIDE)
            return np.array([scorer.predict([pair])[0] for pair in PAIRS])[:, None]
        model = sentence_transformers.SentenceTransformer(str(folder), device="cpu", model_kwargs=WIDE)
        rows = [model.encode([text], prompt_name=prompt)[0] for prompt in case.prompt_names for text in TEXTS]
        return np.stack(rows)


def main() -> None:
    """Write the vectors of all cases, or of the named ones beside the others."""
    torch.manual_seed(0)
    names = sys.argv[1:] or [case.name for case in PUBLISHED_ENCODERS]
    rows = dict(np.load(REFERENCES)) if sys.argv[1:] and REFERENCES.exists() else {}
    for case in (case for case in PUBLISHED_ENCODERS if case.name in names):
        rows[case.name] = reference(case).astype(np.float32)
        print(f"{case.name:45} {rows[case.name].shape} std {rows[case.name].std():.3f}", flush=True)
    versions = {"sentence_transformers": sentence_transformers.__version__, "transformers": transformers.__version__}
    np.savez_compressed(REFERENCES, **rows | {f"version of {name}": np.array(text) for name, text in versions.items()})


if __name__ == "__main__":
    main()
