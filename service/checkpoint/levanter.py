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

from service.checkpoint import levanter_unreleased
from service.errors import MalformedCheckpoint, MissingExtra
from service.models.registry import RUN

VOCABULARY = (
    *("model.embed_tokens.weight", "model.language_model.embed_tokens.weight", "lm_head.weight", "wte.weight"),
)
MODEL = "model/"  # precedes the paths of a model's arrays in a checkpoint
EMBEDDINGS = ("model/embeddings/token_embeddings/weight", "model/transformer/token_embed")
# Each type of a run, the class of its configuration, and the model_type of its export to Hugging Face.
TYPES = {
    "apertus": ("levanter.models.apertus", "ApertusConfig", "apertus"),
    "gemma": ("levanter.models.gemma", "GemmaConfig", "gemma"),
    "gemma2": ("levanter.models.gemma", "Gemma2Config", "gemma2"),
    "gemma3": ("levanter.models.gemma", "Gemma3Config", "gemma3_text"),
    "gpt2": ("levanter.models.gpt2", "Gpt2Config", "gpt2"),
    "llama": ("levanter.models.llama", "LlamaConfig", "llama"),
    "mistral": ("levanter.models.mistral", "MistralConfig", "mistral"),
    "mixtral": ("levanter.models.mixtral", "MixtralConfig", "mixtral"),
    "olmo2": ("levanter.models.olmo", "Olmo2Config", "olmo2"),
    "olmo3": ("levanter.models.olmo3", "Olmo3Config", "olmo3"),
    "qwen": ("levanter.models.qwen", "QwenConfig", "qwen2"),
    "qwen3": ("levanter.models.qwen", "Qwen3Config", "qwen3"),
    "qwen3_moe": ("levanter.models.qwen3_moe", "Qwen3MoeConfig", "qwen3_moe"),
    "snowball": ("levanter.models.snowball", "SnowballConfig", "grug_moe"),
}


def require_levanter(uri: str) -> None:
    """Import Levanter.

    Raises:
        MissingExtra: it is not installed; the message says how to install it.
    """
    try:
        import levanter.checkpoint  # noqa: F401
    except ImportError as error:
        raise MissingExtra(uri, "is a Levanter checkpoint, and Levanter is not installed here", "levanter") from error
    logging.getLogger("levanter").setLevel(logging.WARNING)


def stored_vocab_size(manifest: bytes) -> int | None:
    """Return how many rows the embedding has, from a checkpoint's `manifest.json`; None if it has no shape of it."""
    try:
        arrays = json.loads(manifest)["arrays"]
        return next(int(array["shape"][0]) for array in arrays if array["path"] in EMBEDDINGS)
    except (ValueError, TypeError, KeyError, IndexError, StopIteration):
        return None


def decode_config(model: Mapping[str, Any]) -> Any:
    """Parse the `model:` part of a Levanter YAML as Levanter's configuration class."""
    from importlib import import_module

    import draccus
    from levanter.models.lm_model import LmConfig

    import_module(TYPES[model["type"]][0])  # it registers its name
    return draccus.decode(LmConfig, dict(model))


def run_values(config: Any, vocab_size: int, **more: Any) -> dict[str, Any]:
    """Return the values of a configuration that stands for a run: Levanter's own, with all defaults written out.

    Args:
        config: Levanter's configuration of the model.
        vocab_size: the number of token ids.
        more: further values, such as the dtype.
    """
    import draccus
    from levanter.models.lm_model import LmConfig

    kind = LmConfig.get_choice_name(type(config))
    run = json.loads(json.dumps(draccus.encode(config), default=str))
    return {"model_type": kind, "vocab_size": vocab_size, RUN: {**run, "type": kind}, **more}


def hub_values(config: Any, vocab_size: int) -> dict[str, Any]:
    """Return the values of the `config.json` to which Levanter exports a model.

    Raises:
        Exception: of any kind, where Levanter cannot express the model as a Hugging Face one.
    """
    return config.to_hf_config(vocab_size).to_dict()


def read_tensors(uri: str, step_path: Path, hub_config: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Read a step through Levanter's loader and return its weights under Hugging Face's names, as float32 or narrower.

    Args:
        uri: the checkpoint's address, for messages.
        step_path: the verified local copy of one step.
        hub_config: the values that stand for the run.

    Raises:
        MalformedCheckpoint: the stored tensors are not those of the configuration.
    """
    import equinox
    import jax
    from haliax import Axis
    from haliax.state_dict import to_torch_compatible_state_dict
    from levanter.checkpoint import load_checkpoint

    kind = hub_config[RUN]["type"]
    if kind in levanter_unreleased.DEFAULTS:
        tensors = levanter_unreleased.named_tensors(kind, _stored_arrays(uri, step_path))
        return {name: _cut_padding(array, int(hub_config["vocab_size"]), name) for name, array in tensors.items()}
    manifest = step_path / "manifest.json"
    stored = stored_vocab_size(manifest.read_bytes()) if manifest.is_file() else None
    vocab = Axis("vocab", stored or int(hub_config["vocab_size"]))
    config = decode_config(hub_config[RUN])
    with jax.default_device(jax.local_devices(backend="cpu")[0]), jax.set_mesh(one_device_mesh(config)):
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


def _stored_arrays(uri: str, step_path: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a step's model by their paths in it, as it lists them."""
    import jax
    from levanter.checkpoint import load_checkpoint

    try:
        listed = json.loads((step_path / "manifest.json").read_bytes())["arrays"]
        shapes = {array["path"].removeprefix(MODEL): (tuple(array["shape"]), array["dtype"]) for array in listed}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise MalformedCheckpoint(uri, f"{step_path.name}/manifest.json", "does not list the arrays.") from error
    tree: dict[str, Any] = {}
    for path, (shape, dtype) in shapes.items():
        *folders, name = path.split("/")
        branch = tree
        for folder in folders:
            branch = branch.setdefault(folder, {})
        branch[name] = jax.ShapeDtypeStruct(shape, dtype)
    device = jax.local_devices(backend="cpu")[0]
    with jax.default_device(device), jax.set_mesh(jax.sharding.Mesh(np.array([device]), ("data",))):
        try:
            loaded = load_checkpoint(tree, step_path, subpath=MODEL.rstrip("/"))
        except (FileNotFoundError, KeyError, ValueError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise MalformedCheckpoint(uri, step_path.name, f"Levanter cannot read it: {reason}") from error
    leaves = jax.tree_util.tree_leaves_with_path(loaded)
    return {"/".join(key.key for key in path): np.asarray(array) for path, array in leaves}


def levanter_config(hub_config: Mapping[str, Any]) -> Any:
    """Return Levanter's configuration of the model that a `config.json` describes.

    Raises:
        KeyError: Levanter has no such model, or none that is served.
    """
    from importlib import import_module

    from transformers import AutoConfig

    module, name = {exported: (module, name) for module, name, exported in TYPES.values()}[hub_config["model_type"]]
    given = {key: value for key, value in hub_config.items() if key not in ("model_type", "architectures")}
    config = getattr(import_module(module), name).from_hf_config(
        AutoConfig.for_model(hub_config["model_type"], **given)
    )
    # Levanter's conversion ignores the head's size, which changes the stored shapes.
    head_dim = hub_config.get("head_dim") or getattr(config, "head_dim", None)
    return dataclasses.replace(config, head_dim=head_dim) if hasattr(config, "head_dim") else config


def one_device_mesh(config: Any) -> Any:
    """Return a mesh on which Levanter builds a model of a configuration."""
    import jax

    device = jax.local_devices(backend="cpu")[0]
    if not config.requires_explicit_mesh_axes:
        return jax.sharding.Mesh(np.array([device]), ("data",))
    # Source: Levanter `grug/sharding.py` (compact_grug_mesh)
    axes = ("replica_dcn", "data", "context", "expert", "model")
    types = (jax.sharding.AxisType.Explicit,) * len(axes)
    return jax.sharding.Mesh(np.array([device]).reshape((1,) * len(axes)), axes, axis_types=types)


def _cut_padding(array: np.ndarray, vocab_size: int, name: str) -> np.ndarray:
    """Drop the rows that Levanter adds to make the vocabulary divisible among devices; they belong to no token."""
    return array[:vocab_size] if name in VOCABULARY else array
