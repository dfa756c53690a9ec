"""Checkpoints that another environment's transformers saved and ran, loaded as a start loads them."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from service.checkpoint.discover import locate
from service.checkpoint.limits import LoadLimits
from service.checkpoint.load import load_on_host
from service.kernels.reference import PagedReference
from service.models.decoder import Decoder
from service.models.registry import read_config
from service.observability.progress import Progress
from service.storage.local import LocalSource
from tests.parity.test_reference_logits import logits_by_chunk
from tests.served import DEMO


def load_weights(model: Decoder, folder: Path) -> dict[str, jax.Array]:
    """Load the weights of a folder for a model."""
    located = locate(str(folder), LocalSource, tokenizer_uri=str(DEMO))
    loaded = load_on_host(located, model.weight_specs(), LoadLimits(None, Progress(), 1 << 20))
    return {name: jnp.asarray(weight) for name, weight in loaded.weights.items()}


def logits_of(folder: Path, config: str, max_model_len: int | None = None) -> np.ndarray:
    """Return the logits of the folder's tokens, of shape [token, vocabulary], by one of its configurations."""
    values = json.loads((folder / config).read_text())
    model = Decoder(read_config(str(folder), values, max_model_len), kernel=PagedReference())
    token_ids = np.load(folder / "token_ids.npy")
    return logits_by_chunk(model, load_weights(model, folder), token_ids, len(token_ids))
