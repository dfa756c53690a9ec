"""Writes a checkpoint the way Levanter does: any Hugging Face weights as a `step-N` of a run."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np


@contextmanager
def implicit_promotion() -> Iterator[None]:
    """Let Levanter's own code, which relies on it, mix dtypes and ranks."""
    import jax

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def build_model(hub_config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Any:
    """Return Levanter's own model with these weights."""
    import equinox
    import jax
    import jax.numpy as jnp
    from haliax import Axis
    from haliax.state_dict import from_torch_compatible_state_dict

    from service.checkpoint.levanter import levanter_config, one_device_mesh

    config = levanter_config(hub_config)
    vocab = Axis("vocab", int(hub_config["vocab_size"]))
    with implicit_promotion(), jax.set_mesh(one_device_mesh(config)):
        shapes = equinox.filter_eval_shape(config.build, vocab, key=jax.random.PRNGKey(0))
        return from_torch_compatible_state_dict(shapes, {name: jnp.asarray(array) for name, array in tensors.items()})


def levanter_logits(model: Any, token_ids: np.ndarray) -> np.ndarray:
    """Return the logits of Levanter's forward, [token, vocab]; its experts ask for a mesh around the call."""
    import haliax as hax
    import jax
    from levanter.layers.attention import AttentionMask

    forward = hax.named_jit(lambda model, ids: model(ids, AttentionMask.causal()))
    logits = forward(model, hax.named(jax.numpy.asarray(token_ids), "position"))
    return np.asarray(logits.rearrange(("position", "vocab")).array)


def save_step(run: Path, step: int, hub_config: Mapping[str, Any], tensors: Mapping[str, np.ndarray]) -> Path:
    """Save the weights as one step of a run, through Levanter's own writer."""
    from levanter.checkpoint import save_checkpoint

    path = run / f"step-{step}"
    save_checkpoint({"model": build_model(hub_config, tensors)}, step, str(path), is_temporary=False)
    return path
