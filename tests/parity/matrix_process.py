"""Has a release of transformers write each model in many ways; imports nothing of this project.

    PYTHON tests/parity/matrix_process.py CASES.json FOLDER

CASES.json maps a name to the values of a `config.json`. Of each, FOLDER/NAME/WAY holds the checkpoint that a way of
saving writes, and FOLDER/NAME/REFERENCE the tokens, `token_ids.npy`, of which all after the prompt are the likeliest
ones, and their logits, `logits.npy`, of shape [token, vocabulary]. REFERENCE is `plain`, or `merged` for a model into
which PEFT has merged an adapter. Where a way cannot be used, its folder holds `error.txt`.
"""

import copy
import json
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import save_file, save_model
from saved_process import draw, model_of
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.optim.swa_utils import AveragedModel

NUM_PROMPT, NUM_TOKENS = 24, 36
SHARD = "16KB"


def logits_of(model: torch.nn.Module, token_ids: "list[int]") -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor([token_ids]), use_cache=False).logits[0].float().numpy()


def write_reference(model: torch.nn.Module, folder: Path, limit: int) -> None:
    """Write the tokens that a model continues a prompt with, and the logits of all."""
    folder.mkdir(parents=True)
    token_ids = np.random.RandomState(7).randint(3, limit, NUM_PROMPT).tolist()
    while len(token_ids) < NUM_TOKENS:
        likeliest = int(logits_of(model, token_ids)[-1][:limit].argmax())
        token_ids.append(likeliest)
    np.save(folder / "token_ids.npy", np.asarray(token_ids, np.int32))
    np.save(folder / "logits.npy", logits_of(model, token_ids))


def whole(tensors: "dict[str, torch.Tensor]") -> "dict[str, torch.Tensor]":
    """Return tensors that share no memory, as safetensors wants them."""
    return {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}


def named(model: torch.nn.Module, folder: Path, tensors: "dict[str, torch.Tensor]") -> None:
    """Write a model's configuration, and its tensors under the names that they have."""
    folder.mkdir(parents=True)
    model.config.save_pretrained(folder)
    save_file(whole(tensors), folder / "model.safetensors", metadata={"format": "pt"})


def pickled(model: torch.nn.Module, folder: Path, content: object) -> None:
    folder.mkdir(parents=True)
    model.config.save_pretrained(folder)
    torch.save(content, folder / "pytorch_model.bin")


def without_copies(model: torch.nn.Module, folder: Path) -> None:
    """Write a model with safetensors' own function, which leaves out all but one of tensors that share memory."""
    folder.mkdir(parents=True)
    model.config.save_pretrained(folder)
    save_model(torch.nn.ModuleDict({"module": model})["module"], str(folder / "model.safetensors"))


def recomputed(model: torch.nn.Module, folder: Path) -> None:
    """Write a model of whose layers the activations are recomputed."""
    layers = next(module for module in model.modules() if isinstance(module, torch.nn.ModuleList) and len(module) > 1)
    kept = list(layers)
    for number, layer in enumerate(kept):
        layers[number] = checkpoint_wrapper(layer)
    # The wrapper's own hook removes its names; FSDP's does not always.
    tensors = {
        name if number % 2 else name.replace("layers.0.", "layers.0._checkpoint_wrapped_module."): tensor
        for number, (name, tensor) in enumerate(model.state_dict().items())
    }
    for number, layer in enumerate(kept):
        layers[number] = layer
    named(model, folder, tensors)


def sharded_fully(model: torch.nn.Module, folder: Path) -> None:
    """Write a model under the names of FSDP, which wraps the whole and each layer."""
    wrapped = {
        "_fsdp_wrapped_module." + name.replace("layers.1.", "layers.1._fsdp_wrapped_module."): tensor
        for name, tensor in model.state_dict().items()
    }
    named(model, folder, wrapped)


def lightning(model: torch.nn.Module, folder: Path) -> None:
    state = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    pickled(model, folder, {"epoch": 3, "global_step": 100, "state_dict": state, "optimizer_states": [{"state": {}}]})


def bare(model: torch.nn.Module, folder: Path) -> None:
    """Write the tensors of the model without its head, under the names that they have there."""
    prefix = getattr(model, "base_model_prefix", "")  # which in Gemma 3's class of 4.57 is no module's name
    inner = getattr(model, prefix if hasattr(model, prefix or "-") else "model")
    named(model, folder, inner.state_dict())


def in_half(model: torch.nn.Module, folder: Path, dtype: torch.dtype) -> None:
    """Write a model in 16 bits, which hold all of its numbers."""
    kept = copy.deepcopy(model.config)  # which the next line changes
    model.to(dtype)
    model.save_pretrained(folder)
    model.float()
    model.config = kept


WAYS: "dict[str, Callable[[torch.nn.Module, Path], object]]" = {
    "single": lambda model, folder: model.save_pretrained(folder),
    "shards": lambda model, folder: model.save_pretrained(folder, max_shard_size=SHARD),
    "pickled": lambda model, folder: pickled(model, folder, model.state_dict()),
    "pickled-shards": lambda model, folder: model.save_pretrained(
        folder, safe_serialization=False, max_shard_size=SHARD
    ),
    "bfloat16": lambda model, folder: in_half(model, folder, torch.bfloat16),
    "compiled": lambda model, folder: named(model, folder, torch.compile(model).state_dict()),
    "data-parallel": lambda model, folder: named(model, folder, torch.nn.DataParallel(model).state_dict()),
    "averaged": lambda model, folder: named(model, folder, AveragedModel(model).state_dict()),
    "compiled-data-parallel": lambda model, folder: named(
        model, folder, torch.nn.DataParallel(torch.compile(model)).state_dict()
    ),
    "fsdp": sharded_fully,
    "recomputed": recomputed,
    "lightning": lightning,
    "trainer": lambda model, folder: pickled(model, folder, {"model": model.state_dict(), "step": 7}),
    "deepspeed": lambda model, folder: pickled(
        model, folder, {"module": torch.nn.DataParallel(model).state_dict(), "dp_world_size": 1}
    ),
    "without-copies": without_copies,
    "bare": bare,
}


def with_adapter(model: torch.nn.Module, name: str) -> torch.nn.Module:
    """Return PEFT's model with a random adapter of all linear layers."""
    import peft

    config = peft.LoraConfig(r=4, lora_alpha=6, target_modules="all-linear", task_type="CAUSAL_LM", use_rslora=False)
    wrapped = peft.get_peft_model(model, config)
    with torch.no_grad():
        for key, parameter in wrapped.named_parameters():
            if "lora_" in key:
                parameter.copy_(draw(f"{name} {key}", parameter) * 0.3)
    return wrapped.eval()


def write_merged(model: torch.nn.Module, folder: Path, limit: int) -> None:
    """Write a model with an adapter in it: merged, and under the names that PEFT gives to layers."""
    wrapped = with_adapter(model, "adapter")
    wrapped.merge_adapter()
    layers = {name: tensor.clone() for name, tensor in wrapped.state_dict().items()}
    own = {name: tensor for name, tensor in layers.items() if "lora_" not in name}
    config = model.config
    merged = wrapped.base_model.unload() if hasattr(wrapped.base_model, "unload") else wrapped.unload()
    merged.config = config
    merged.save_pretrained(folder / "peft")
    named(model, folder / "peft-names", own)
    named(model, folder / "peft-unmerged", layers)
    saved = type(merged).from_pretrained(folder / "peft", attn_implementation="eager")
    write_reference(saved.float().eval(), folder / "merged", limit)


def attempt(write: "Callable[[], object]", folder: Path) -> None:
    try:
        write()
    except Exception:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "error.txt").write_text(traceback.format_exc())


def run(values: dict, folder: Path) -> None:
    """Write one model in all ways."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(values))
    config = transformers.AutoConfig.from_pretrained(folder)
    (folder / "config.json").unlink()
    model = model_of(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.endswith(("act_fn.beta", "act_fn.eps")):
                parameter.copy_(draw(name, parameter).bfloat16())
    model.tie_weights()
    limit = min(getattr(getattr(config, "text_config", config), "vocab_size", 90), 90)
    write_reference(model, folder / "plain", limit)
    for way, write in WAYS.items():
        attempt(lambda way=way, write=write: write(model, folder / way), folder / way)
    attempt(lambda: write_merged(model, folder, limit), folder / "peft")


def main() -> None:
    """Write all cases."""
    warnings.simplefilter("ignore")
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
