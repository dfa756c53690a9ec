"""Makes the reference vectors of encoder families with transformers on torch, in an environment of its own.

    python3.11 -m venv /tmp/torch && /tmp/torch/bin/pip install torch transformers numpy
    PYTHONPATH=. /tmp/torch/bin/python -m tests.parity.make_encoder_references [NAME …]

The service never imports torch; what this writes is committed. Each text is encoded alone, so none is padded.
"""

import sys

import numpy as np
import torch
import transformers

from tests.encoder.tiny import VOCAB
from tests.parity.encoder_cases import ENCODER_CASES, EncoderCase, second_from, tensor, texts


def pooled(hidden: torch.Tensor, pooling: str) -> torch.Tensor:
    """Reduce hidden states of shape [token, hidden] as sentence-transformers names it."""
    return {"cls_token": hidden[0], "mean_tokens": hidden.mean(0), "lasttoken": hidden[-1]}[pooling]


def loader(case: EncoderCase) -> type:
    """Return the class of transformers that computes a case's vectors or logits."""
    if case.pooling is not None:
        return transformers.AutoModel
    return (
        transformers.AutoModelForCausalLM if case.scores_by_tokens else transformers.AutoModelForSequenceClassification
    )


def row(case: EncoderCase, output: transformers.utils.ModelOutput) -> torch.Tensor:
    """Return a text's vector, or its score as an array of one element."""
    if case.pooling is not None:
        return pooled(output.last_hidden_state[0], case.pooling)
    if case.scores_by_tokens:
        tokens = [VOCAB[token] for token in case.config["classifier_from_token"]]
        return torch.softmax(output.logits[0, -1, tokens], -1)[1:]
    return torch.sigmoid(output.logits[0])


def reference_vectors(case: EncoderCase) -> np.ndarray:
    """Return float32 vectors of the texts, [text, vector]."""
    values = {key: value for key, value in case.hub_config.items() if key != "model_type"}
    config = transformers.AutoConfig.for_model(case.model_type, **values)
    config._attn_implementation = "eager"
    model = loader(case).from_config(config).to(torch.float32).eval()
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    model.load_state_dict({n: torch.from_numpy(tensor(n, s)) for n, s in shapes.items()})
    rows = []
    for text, second in zip(texts(case.padding_id), second_from(case), strict=True):
        inputs = {"input_ids": torch.tensor([text]), "attention_mask": torch.ones(1, len(text), dtype=torch.long)}
        if case.num_token_types > 1:
            inputs["token_type_ids"] = (torch.arange(len(text)) >= second).long()[None]
        with torch.no_grad():
            rows.append(row(case, model(**inputs)))
    return torch.stack(rows).numpy()


def main() -> None:
    """Write one file a case; of the named cases, if any is named."""
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    names = sys.argv[1:] or [case.name for case in ENCODER_CASES]
    for case in (case for case in ENCODER_CASES if case.name in names):
        vectors = reference_vectors(case)
        np.savez_compressed(case.reference_path, vectors=vectors, **versions)
        print(f"{case.name:20} {vectors.shape} std {vectors.std():.3f}")


if __name__ == "__main__":
    main()
