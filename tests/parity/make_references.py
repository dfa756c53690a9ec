"""Makes the reference logits with transformers on torch, in an environment of its own.

    python3.11 -m venv /tmp/torch && /tmp/torch/bin/pip install torch transformers numpy
    PYTHONPATH=. /tmp/torch/bin/python -m tests.parity.make_references

The service never imports torch; what this writes is committed.
"""

import numpy as np
import torch
import transformers

from tests.parity.cases import CASES, Case


def reference_logits(case: Case) -> np.ndarray:
    """Return float32 logits of every position, [token, vocab]."""
    values = case.hub_config
    config = transformers.AutoConfig.for_model(
        values["model_type"], **{k: v for k, v in values.items() if k != "model_type"}
    )
    config._attn_implementation = "eager"
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.float32).eval()
    tensors = {name: torch.from_numpy(array) for name, array in case.tensors().items()}
    missing, unexpected = model.load_state_dict(tensors, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"lm_head.weight"}, missing
    model.tie_weights()
    with torch.no_grad():
        return model(torch.from_numpy(case.token_ids[None]).long()).logits[0].numpy()


def main() -> None:
    """Write one file a case."""
    for case in CASES:
        logits = reference_logits(case)
        case.reference_path.parent.mkdir(exist_ok=True)
        np.savez_compressed(
            case.reference_path, logits=logits, transformers=transformers.__version__, torch=torch.__version__
        )
        print(f"{case.name:24} {logits.shape} std {logits.std():.3f}")


if __name__ == "__main__":
    main()
