"""A tiny Llama in two safetensors objects of a bucket, its expected weights, and a loader with small limits."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
from safetensors.numpy import save

from service.checkpoint.discover import LocatedCheckpoint, locate
from service.checkpoint.limits import LoadLimits
from service.checkpoint.load import LoadedWeights, load_checkpoint
from service.device.mesh import DeviceMesh
from service.models.decoder_weights import decoder_weight_specs
from service.models.registry import read_config
from service.models.weight_spec import WeightSpec
from service.observability.progress import Progress
from service.storage.cache.cache import CheckpointCache
from service.storage.gcs.read import GcsSource
from tests.stored import quick_limits

SLICE_BYTES = 32 * 1024
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 300,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}
SPECS: tuple[WeightSpec, ...] = decoder_weight_specs(read_config("test", CONFIG))
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
STAGING_BYTES = 64 * 1024 * 1024
DTYPE = np.dtype(np.float32)


def tensors() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    sources = sorted((s for spec in SPECS for s in spec.sources), key=lambda source: source.name)
    return {s.name: random.standard_normal(s.shape).astype(ml_dtypes.bfloat16) for s in sources}


def made_at_once(spec: WeightSpec, stored: dict[str, np.ndarray], dtype: np.dtype) -> np.ndarray:
    """Return a weight as numpy makes it of whole tensors."""
    parts = []
    for source in spec.sources:
        tensor = stored[source.name]
        before = spec.concat_axis - 1
        view = tuple(size // source.copies if axis == before else size for axis, size in enumerate(source.view))
        part = tensor.astype(dtype).reshape(view)
        parts.append(part.repeat(source.copies, axis=before) if source.copies > 1 else part)
    return np.concatenate(parts, axis=spec.concat_axis)


TENSORS = tensors()
# Cut in the middle of a layer, so that one weight is made of tensors of both objects.
_NAMES = list(TENSORS)
_CUT = _NAMES.index("model.layers.1.self_attn.k_proj.weight") + 1
WEIGHT_MAP = {name: SHARDS[number >= _CUT] for number, name in enumerate(_NAMES)}
INDEX = "model.safetensors.index.json"
OBJECTS = {
    "config.json": json.dumps(CONFIG).encode(),
    "tokenizer.json": b"{}",
    INDEX: json.dumps({"weight_map": WEIGHT_MAP}).encode(),
    SHARDS[0]: save({name: TENSORS[name] for name in _NAMES[:_CUT]}),
    SHARDS[1]: save({name: TENSORS[name] for name in _NAMES[_CUT:]}),
}


def same_weights(loaded: LoadedWeights[jax.Array]) -> bool:
    return list(loaded.weights) == [spec.name for spec in SPECS] and all(
        np.array_equal(loaded.weights[spec.name], made_at_once(spec, TENSORS, DTYPE)) for spec in SPECS
    )


@dataclass
class Loader:
    """Loads the checkpoint below one prefix; `root` is the cache."""

    endpoint: str
    bucket_name: str
    root: Path
    prefix: str = "llama"
    progress: Progress = field(default_factory=Progress)

    def locate(self, **limits) -> LocatedCheckpoint:
        values = quick_limits(**({"slice_bytes": SLICE_BYTES} | limits))
        return locate(
            f"gs://{self.bucket_name}/{self.prefix}",
            lambda location: GcsSource(location, emulator_host=self.endpoint, limits=values),
        )

    def cache(self) -> CheckpointCache:
        return CheckpointCache(self.root, max_checkpoints=2)

    def load(
        self, *, is_cached: bool = True, before_load: Callable[[], None] = lambda: None, cancelled=None, **limits
    ) -> LoadedWeights[jax.Array]:
        located = self.locate(**limits)
        before_load()
        return self.load_located(located, is_cached=is_cached, cancelled=cancelled)

    def load_located(
        self, located: LocatedCheckpoint, *, is_cached: bool = False, cancelled=None
    ) -> LoadedWeights[jax.Array]:
        """Load a located checkpoint."""
        return load_checkpoint(
            located,
            SPECS,
            mesh=DeviceMesh((jax.devices()[0],)),
            limits=LoadLimits(self.cache() if is_cached else None, self.progress, STAGING_BYTES, cancelled),
        )

    def visible(self) -> list[Path]:
        return [record.parent for record in self.root.glob("checkpoints/*/COMPLETE.json")]
