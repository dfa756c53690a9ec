"""The layer that predicts further tokens (MTP), which a checkpoint brings for its own model; no jax.

It reads the embedding of a token and, of the position before it, the hidden state behind the model's last norm. Each is
normalized anew, and `fc` makes one of both for a layer that attends. What that gives, behind a norm of its own, is what
a token is chosen by, and further on it takes the place of the hidden state. Embeddings and head are the model's.
Source: vLLM `models/qwen3_next_mtp.py`, `models/qwen3_5_mtp.py` (names of tensors, order of the parts).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from service.models.decoder_weights import decoder_weight_specs
from service.models.description import DecoderConfig, Norm
from service.models.quantization import Quantization, quantized_specs, scale_name, zero_name
from service.models.weight_spec import TensorSource, WeightSpec

PREFIX = "mtp."  # of the names of its tensors
FAMILIES = ("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next")
# In the values of a configuration: whether the files have the tensors of such a layer, and no others of its kind.
HAS_MTP = "levserve_has_mtp"
TARGET_NORM = "target_norm"
_TABLES = tuple(name for table in ("embed", "unembed") for name in (table, scale_name(table), zero_name(table)))


@dataclass(frozen=True)
class MtpConfig:
    """Such a layer, and what it reads of its model."""

    decoder: DecoderConfig  # the layer, and the norm behind it
    target_norm: Norm  # the last norm of the model
    taps: tuple[int, ...]  # the layer of the model, before which hidden states are taken: the one behind the last

    @property
    def target_size(self) -> int:
        """The width of hidden states of the model, which is the layer's."""
        return self.decoder.hidden_size


def read_mtp(values: Mapping[str, Any], target: DecoderConfig) -> MtpConfig | None:
    """Return the layer that a checkpoint brings; None if it has none that is served.

    Args:
        values: the content of `config.json`, with what the files have.
        target: the model.
    """
    return mtp_of(target) if values.get(HAS_MTP) and target.layer_storage is None else None


def mtp_of(target: DecoderConfig) -> MtpConfig:
    """Return the layer that a checkpoint of a model would have: it is one of the model's that attend."""
    layer = next(layer for layer in target.layers if layer.attention is not None)
    names = replace(target.names, prefix=PREFIX)
    decoder = replace(target, layers=(layer,), names=names, layer_storage=None, image_encoder=None)
    return MtpConfig(decoder, target.final_norm, (target.num_layers,))


def mtp_weight_specs(
    config: MtpConfig, dtype: np.dtype, quantization: Quantization, weight_dtype: np.dtype | None
) -> tuple[WeightSpec, ...]:
    """Name every weight array of the layer, but those that it has of its model.

    Args:
        config: the layer.
        dtype: of arrays that are not quantized.
        quantization: how weights of products are stored.
        weight_dtype: of those of them that are not quantized; None for `dtype`.
    """
    size = config.decoder.hidden_size
    shape = (size, 2 * size)
    source = TensorSource(f"{PREFIX}fc.weight", shape, shape)
    joined = WeightSpec("fc", ("embed", "joined"), shape, (source,), dtype=weight_dtype or dtype, num_in_axes=1)
    norms = (
        WeightSpec(
            name, ("embed",), (size,), (TensorSource(f"{PREFIX}{tensor}.weight", (size,), (size,)),), dtype=dtype
        )
        for name, tensor in (("embedding_norm", "pre_fc_norm_embedding"), ("hidden_norm", "pre_fc_norm_hidden"))
    )
    of_layer = decoder_weight_specs(config.decoder, dtype, quantization, weight_dtype)
    own = (spec for spec in of_layer if spec.name not in _TABLES)
    return (*quantized_specs([joined], quantization), *norms, *own)


def shared_specs(target_specs: Sequence[WeightSpec]) -> tuple[tuple[str, WeightSpec], ...]:
    """Return the arrays of its model that the layer has, each with its name there."""
    named = ((TARGET_NORM if spec.name == "final_norm" else spec.name, spec) for spec in target_specs)
    return tuple((name, spec) for name, spec in named if name in (*_TABLES, TARGET_NORM))
