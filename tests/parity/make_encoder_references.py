"""Makes the reference vectors of encoder families with transformers on torch, in an environment of its own.

    python3.11 -m venv /tmp/torch && /tmp/torch/bin/pip install torch transformers numpy
    PYTHONPATH=. /tmp/torch/bin/python -m tests.parity.make_encoder_references

The service never imports torch; what this writes is committed. Each text is encoded alone, so none is padded.
"""

import numpy as np
import torch
import transformers

from tests.parity.encoder_cases import ENCODER_CASES, EncoderCase, tensor, texts


def pooled(hidden: torch.Tensor, pooling: str) -> torch.Tensor:
    """Reduce hidden states of shape [token, hidden] as sentence-transformers names it."""
    return {"cls_token": hidden[0], "mean_tokens": hidden.mean(0), "lasttoken": hidden[-1]}[pooling]


def reference_vectors(case: EncoderCase) -> np.ndarray:
    """Return float32 vectors of the texts, [text, vector]."""
    values = {key: value for key, value in case.hub_config.items() if key != "model_type"}
    config = transformers.AutoConfig.for_model(case.model_type, **values)
    config._attn_implementation = "eager"
    loader = transformers.AutoModel if case.pooling else transformers.AutoModelForSequenceClassification
    model = loader.from_config(config).to(torch.float32).eval()
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    model.load_state_dict({n: torch.from_numpy(tensor(n, s)) for n, s in shapes.items()})
    rows = []
    for text in texts():
        with torch.no_grad():
            output = model(input_ids=torch.tensor([text]), attention_mask=torch.ones(1, len(text), dtype=torch.long))
        rows.append(
            pooled(output.last_hidden_state[0], case.pooling) if case.pooling else torch.sigmoid(output.logits[0])
        )
    return torch.stack(rows).numpy()


def main() -> None:
    """Write one file a case."""
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    for case in ENCODER_CASES:
        vectors = reference_vectors(case)
        np.savez_compressed(case.reference_path, vectors=vectors, **versions)
        print(f"{case.name:16} {vectors.shape} std {vectors.std():.3f}")


if __name__ == "__main__":
    main()
