"""Makes the reference output of a tiny Idefics3 with transformers on torch, in an environment of its own.

    python3.11 -m venv /tmp/torch && /tmp/torch/bin/pip install torch==2.13.0 transformers numpy
    PYTHONPATH=. /tmp/torch/bin/python -m tests.parity.make_vision_references

The service never imports torch; what this writes is committed.
"""

import numpy as np
import torch
import transformers

from tests.parity.family_cases import draw
from tests.parity.vision_cases import CONFIG, REFERENCE_PATH, pictures, token_ids


def main() -> None:
    """Write the rows of every picture, and the logits of every position."""
    config = transformers.Idefics3Config(**{key: value for key, value in CONFIG.items() if key != "model_type"})
    config._attn_implementation = "eager"
    model = transformers.Idefics3ForConditionalGeneration(config).to(torch.float32).eval()
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    tensors = {name: draw("idefics3", name, shape) for name, shape in shapes.items()}
    model.load_state_dict({name: torch.from_numpy(tensor) for name, tensor in tensors.items()})
    pixels = torch.from_numpy((pictures().transpose(0, 3, 1, 2) / np.float32(255) - 0.5) / 0.5)[None].float()
    with torch.no_grad():
        seen = model.model.get_image_features(pixels).pooler_output
        logits = model(input_ids=torch.from_numpy(token_ids()[None]).long(), pixel_values=pixels).logits
    np.savez_compressed(
        REFERENCE_PATH,
        rows=torch.cat(list(seen)).reshape(len(pictures()), -1, seen[0].shape[-1]).numpy(),
        logits=logits[0].numpy(),
        shapes=np.array([(name, " ".join(map(str, shape))) for name, shape in shapes.items()]),
        transformers=transformers.__version__,
        torch=torch.__version__,
    )
    print(f"logits {logits.shape} std {logits.std():.3f}", *list(shapes)[:4], list(shapes)[-2:])


if __name__ == "__main__":
    main()
