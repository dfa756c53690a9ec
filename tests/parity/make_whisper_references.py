"""Makes the reference output of a tiny Whisper with transformers on torch, in an environment of its own.

    python3.11 -m venv /tmp/torch && /tmp/torch/bin/pip install torch==2.13.0 transformers numpy
    PYTHONPATH=. /tmp/torch/bin/python -m tests.parity.make_whisper_references

The service never imports torch; what this writes is committed.
"""

import numpy as np
import torch
import transformers

from tests.parity.family_cases import draw
from tests.parity.whisper_cases import CONFIG, REFERENCE_PATH, features, token_ids


def main() -> None:
    """Write the encoder's output, the logits of every position, and what each token attends to."""
    config = transformers.WhisperConfig(**{key: value for key, value in CONFIG.items() if key != "model_type"})
    config._attn_implementation = "eager"
    model = transformers.WhisperForConditionalGeneration(config).to(torch.float32).eval()
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    for computed in ("proj_out.weight", "model.encoder.embed_positions.weight"):
        shapes.pop(computed)
    tensors = {name: draw("whisper", name, shape) for name, shape in shapes.items()}
    missing, unexpected = model.load_state_dict({k: torch.from_numpy(v) for k, v in tensors.items()}, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"proj_out.weight", "model.encoder.embed_positions.weight"}, missing
    model.tie_weights()
    with torch.no_grad():
        outputs = model(
            torch.from_numpy(features().T[None]),
            decoder_input_ids=torch.from_numpy(token_ids()[None]).long(),
            output_attentions=True,
        )
    np.savez_compressed(
        REFERENCE_PATH,
        memory=outputs.encoder_last_hidden_state[0].numpy(),
        logits=outputs.logits[0].numpy(),
        attention=np.stack([layer[0].numpy() for layer in outputs.cross_attentions]),
        shapes=np.array([(name, " ".join(map(str, shape))) for name, shape in shapes.items()]),
        transformers=transformers.__version__,
        torch=torch.__version__,
    )
    print(f"logits {outputs.logits.shape} std {outputs.logits.std():.3f}")


if __name__ == "__main__":
    main()
