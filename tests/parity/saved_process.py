"""Has the transformers of another environment save and run checkpoints; imports nothing of this project.

    PYTHON tests/parity/saved_process.py CASES.json FOLDER [MODEL_TYPE …]

CASES.json maps a name to the values of a `config.json`. Of each, FOLDER/NAME gets `model.safetensors` with random
weights, `config.json` as it was given, `saved/config.json` as that transformers saves it, `logits.npy`, of shape
[token, vocabulary], and `rotations.json`: of each kind of layer the angles of a position and the factor of their sines;
or `error.txt`, if it cannot be run. FOLDER/defaults.json gets the default configuration of each model_type.
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


def draw(name: str, parameter: torch.Tensor, model_type: str) -> torch.Tensor:
    """Draw weights whose gain is about one, as in a trained model: scales are around one, and spread 0.2."""
    random = np.random.RandomState(zlib.crc32(name.encode()))
    is_scale = ("norm" in name or "ln_" in name) and name.endswith("weight") and parameter.ndim == 1
    # Of these families a scale is one more than its weight, but for the one of what recurrent layers read.
    is_scale &= not model_type.startswith(("qwen3_5", "qwen3_next")) or name.endswith("linear_attn.norm.weight")
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


def rotations(model: "transformers.PreTrainedModel") -> dict:
    """Return the rotations of a model of text, after it has run."""
    found = {}
    for module in model.modules():
        if not type(module).__name__.endswith("RotaryEmbedding") or "Vision" in type(module).__name__:
            continue
        for name, angles in module.named_buffers():
            kind = name.removesuffix("inv_freq").removesuffix("_")
            if name.endswith("inv_freq") and "original" not in kind:
                prefix = f"{kind}_" if kind else ""
                factor = getattr(module, f"{prefix}attention_scaling", 1.0)
                found[kind] = {"angles": angles.tolist(), "factor": float(factor)}
    return found


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
                parameter.copy_(draw(name, parameter, config.model_type))
        model.tie_weights()
    model.save_pretrained(folder / "saved", safe_serialization=True)
    shutil.move(folder / "saved" / "model.safetensors", folder / "model.safetensors")
    vocab_size = config.get_text_config().vocab_size if hasattr(config, "get_text_config") else config.vocab_size
    token_ids = np.random.RandomState(7).randint(0, min(vocab_size, 90), NUM_TOKENS)
    with torch.no_grad():
        logits = model(torch.from_numpy(token_ids[None]).long()).logits[0].float().numpy()
    np.save(folder / "logits.npy", logits)
    (folder / "rotations.json").write_text(json.dumps(rotations(model)))
    np.save(folder / "token_ids.npy", token_ids.astype(np.int32))


def defaults(model_types: "list[str]") -> dict:
    """Return the values of default configurations, by model_type; those of a part follow a dot."""
    found = {}
    for model_type in model_types:
        try:
            values = transformers.AutoConfig.for_model(model_type).to_dict()
        except ValueError:  # this release has no such model
            continue
        found[model_type] = values
        parts = [part for part in values.values() if isinstance(part, dict) and "model_type" in part]
        for part in parts:
            found.setdefault(str(part["model_type"]), part)
    return found


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
    (folder / "defaults.json").write_text(json.dumps(defaults(sys.argv[3:]), default=str))


if __name__ == "__main__":
    main()
