"""Has the transformers of another environment save and run checkpoints; imports nothing of this project.

    PYTHON tests/parity/saved_process.py CASES.json FOLDER

CASES.json maps a name to the values of a `config.json`. Of each, FOLDER/NAME gets `model.safetensors` with random
weights, `config.json` as it was given, `saved/config.json` as that transformers saves it, and `logits.npy`, of shape
[token, vocabulary]; or `error.txt`, if it cannot be run.
"""

import json
import shutil
import sys
import traceback
import zlib
from pathlib import Path

import numpy as np
import torch
import transformers

NUM_TOKENS = 40


def draw(name: str, parameter: torch.Tensor) -> torch.Tensor:
    """Draw weights whose gain is about one, as in a trained model: scales are around one, and spread 0.2."""
    random = np.random.RandomState(zlib.crc32(name.encode()))
    is_scale = ("norm" in name or "ln_" in name) and name.endswith("weight") and parameter.ndim == 1
    values = random.randn(*parameter.shape) * 0.2 + is_scale
    return torch.from_numpy(np.asarray(values, np.float32))


def model_of(config: "transformers.PretrainedConfig") -> "transformers.PreTrainedModel":
    """Return a model of a configuration, in float32, with attention in plain products."""
    kinds = ("AutoModelForCausalLM", "AutoModelForImageTextToText", "AutoModelForVision2Seq")
    for kind in kinds:
        if not hasattr(transformers, kind):
            continue
        try:
            return getattr(transformers, kind).from_config(config, attn_implementation="eager").float().eval()
        except ValueError as error:
            if "Unrecognized configuration class" not in str(error):
                raise
    raise ValueError(f"no model of {type(config).__name__}")


def run(values: dict, folder: Path) -> None:
    """Save and run one checkpoint."""
    (folder / "saved").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(values, indent=1))
    config = transformers.AutoConfig.from_pretrained(folder)
    model = model_of(config)
    constants = ("act_fn.beta", "act_fn.eps")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.endswith(constants):
                parameter.copy_(draw(name, parameter))
        model.tie_weights()
    model.save_pretrained(folder / "saved", safe_serialization=True)
    shutil.move(folder / "saved" / "model.safetensors", folder / "model.safetensors")
    vocab_size = config.get_text_config().vocab_size if hasattr(config, "get_text_config") else config.vocab_size
    token_ids = np.random.RandomState(7).randint(0, min(vocab_size, 90), NUM_TOKENS)
    with torch.no_grad():
        logits = model(torch.from_numpy(token_ids[None]).long()).logits[0].float().numpy()
    np.save(folder / "logits.npy", logits)
    np.save(folder / "token_ids.npy", token_ids.astype(np.int32))


def main() -> None:
    """Run all cases."""
    cases, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    for name, values in cases.items():
        try:
            run(values, folder / name)
        except Exception:
            (folder / name).mkdir(parents=True, exist_ok=True)
            (folder / name / "error.txt").write_text(traceback.format_exc())
    (folder / "version.txt").write_text(transformers.__version__)


if __name__ == "__main__":
    main()
