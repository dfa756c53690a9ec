"""Levanter's configurations and TensorStore checkpoints, read by Levanter's own code.

Only this file imports Levanter, which takes seconds, and no Hugging Face checkpoint needs it. A checkpoint is read from
a local copy whose bytes were checked, because TensorStore accepts corrupt bytes silently.
"""

import dataclasses
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from service.errors import MalformedCheckpoint, MissingFile

EMBEDDING = "model/embeddings/token_embeddings/weight"
_CONFIG_MODULES = {
    "llama": ("levanter.models.llama", "LlamaConfig"),
    "mistral": ("levanter.models.mistral", "MistralConfig"),
    "qwen2": ("levanter.models.qwen", "QwenConfig"),
    "qwen3": ("levanter.models.qwen", "Qwen3Config"),
}


def require_levanter(uri: str) -> None:
    """Import Levanter.

    Raises:
        MissingFile: it is not installed; the message says how to install it.
    """
    try:
        import levanter.checkpoint  # noqa: F401
    except ImportError as error:
        raise MissingFile(
            uri,
            "is a Levanter checkpoint, and Levanter is not installed here: pip install 'levserve[levanter]'.",
        ) from error
    logging.getLogger("levanter").setLevel(logging.WARNING)


def stored_vocab_size(manifest: bytes) -> int | None:
    """Return how many rows the embedding has, from a checkpoint's `manifest.json`; None if it has no shape of it."""
    try:
        arrays = json.loads(manifest)["arrays"]
        return next(int(array["shape"][0]) for array in arrays if array["path"] == EMBEDDING)
    except (ValueError, TypeError, KeyError, IndexError, StopIteration):
        return None


def decode_config(model: Mapping[str, Any]) -> Any:
    """Parse the `model:` part of a Levanter YAML as Levanter's configuration class."""
    from importlib import import_module

    import draccus
    from levanter.models.lm_model import LmConfig

    for module, _ in _CONFIG_MODULES.values():
        import_module(module)  # each registers its name
    return draccus.decode(LmConfig, dict(model))


def hub_values(config: Any, vocab_size: int) -> dict[str, Any]:
    """Return the values of the `config.json` that describes a Levanter configuration's model."""
    values = config.to_hf_config(vocab_size).to_dict()
    if getattr(config, "head_dim", None):
        values["head_dim"] = config.head_dim
    return values


def read_tensors(uri: str, step_path: Path, hub_config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Read a step through Levanter's loader and return its weights under Hugging Face's names, as float32 or narrower.

    Args:
        uri: the checkpoint's address, for messages.
        step_path: the verified local copy of one step.
        hub_config: the values of the model's `config.json`.

    Raises:
        MalformedCheckpoint: the stored tensors are not those of the configuration.
    """
    import equinox
    import jax
    from haliax import Axis
    from haliax.state_dict import to_torch_compatible_state_dict
    from levanter.checkpoint import load_checkpoint

    manifest = step_path / "manifest.json"
    stored = stored_vocab_size(manifest.read_bytes()) if manifest.is_file() else None
    vocab = Axis("vocab", stored or int(hub_config["vocab_size"]))
    config = levanter_config(hub_config)
    with jax.default_device(jax.local_devices(backend="cpu")[0]), jax.set_mesh(_one_device_mesh()):
        shapes = equinox.filter_eval_shape(config.build, vocab, key=jax.random.PRNGKey(0))
        try:
            model = load_checkpoint(shapes, step_path, subpath="model")
        except (FileNotFoundError, KeyError, ValueError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise MalformedCheckpoint(uri, step_path.name, f"Levanter cannot read it: {reason}") from error
        tensors = to_torch_compatible_state_dict(model)
    return {
        name: _cut_padding(np.asarray(array), int(hub_config["vocab_size"]), name) for name, array in tensors.items()
    }


def levanter_config(hub_config: Mapping[str, Any]) -> Any:
    """Return Levanter's configuration of the model that a `config.json` describes."""
    from importlib import import_module

    from transformers import AutoConfig

    module, name = _CONFIG_MODULES[hub_config["model_type"]]
    given = {key: value for key, value in hub_config.items() if key not in ("model_type", "architectures")}
    config = getattr(import_module(module), name).from_hf_config(
        AutoConfig.for_model(hub_config["model_type"], **given)
    )
    # Levanter's conversion ignores the head's size, which changes the stored shapes.
    return dataclasses.replace(config, head_dim=hub_config.get("head_dim") or config.head_dim)


def _one_device_mesh() -> Any:
    import jax

    return jax.sharding.Mesh(np.array(jax.local_devices(backend="cpu")[:1]), ("data",))


def _cut_padding(array: np.ndarray, vocab_size: int, name: str) -> np.ndarray:
    """Drop the rows that Levanter adds to make the vocabulary divisible among devices; they belong to no token."""
    return array[:vocab_size] if name in ("model.embed_tokens.weight", "lm_head.weight") else array
