"""The geometry of encoders with rotary positions: what Llama, Qwen 3, Gemma 3 and ModernBERT share; no jax."""

from dataclasses import dataclass
from enum import StrEnum

from service.kernels.windows import Sight
from service.models.encoders.config import Activation, VectorConfig
from service.models.rope import RopeConfig


class Norm(StrEnum):
    """The normalization of hidden states; none has a bias."""

    LAYER = "layer"  # mean and variance
    RMS = "rms"
    RMS_PLUS_ONE = "rms_plus_one"  # the scale is one more than its weight


@dataclass(frozen=True)
class RotaryLayer:
    """What distinguishes one layer from another."""

    rope: RopeConfig
    sight: Sight
    has_attention_norm: bool = True


@dataclass(frozen=True)
class TensorNames:
    """The tensors of a family, without `.weight` and `.bias`; those of a layer without `layers.N.`."""

    embed: str
    final_norm: str
    attention_norm: str
    qkv: tuple[str, ...]  # one tensor, or those of queries, keys and values
    output: str
    mlp_norm: str
    gate_up: tuple[str, ...]  # one tensor, or those of the part with the activation and of the other
    down: str
    embed_norm: str | None = None
    query_norm: str | None = None
    key_norm: str | None = None
    attention_post_norm: str | None = None  # before the sum with the residual
    mlp_post_norm: str | None = None


@dataclass(frozen=True)
class RotaryConfig:
    """A pre-norm encoder with rotary positions, grouped heads and a gated MLP."""

    model_type: str
    vocab_size: int
    hidden_size: int
    mlp_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context_len: int  # tokens
    norm: Norm
    norm_eps: float
    activation: Activation
    attention_scale: float  # factor of the product of a query and a key
    layers: tuple[RotaryLayer, ...]
    names: TensorNames
    vector: VectorConfig
    embed_scale: float = 1.0
    has_qkv_bias: bool = False

    @property
    def num_layers(self) -> int:
        """The number of layers."""
        return len(self.layers)

    @property
    def vector_size(self) -> int:
        """The dimension of a text's vector."""
        if self.vector.score_tokens is not None:
            return 1
        return self.vector.dense[-1].out_size if self.vector.dense else self.hidden_size

    def layer_traits(self, layer: int) -> RotaryLayer:
        """Return what a layer's trace follows from besides the sizes of all layers."""
        return self.layers[layer]
