"""The geometry of encoders with rotary positions: what Llama, Qwen 3, Gemma 3 and ModernBERT share; no jax."""

from dataclasses import dataclass

from service.kernels.windows import Sight
from service.models.description import Activation, Norm, TensorNames
from service.models.encoders.config import VectorConfig
from service.models.rope import RopeConfig


@dataclass(frozen=True)
class RotaryLayer:
    """What distinguishes one layer from another."""

    rope: RopeConfig
    sight: Sight
    has_attention_norm: bool = True


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
    activation: Activation
    attention_scale: float  # factor of the product of a query and a key
    layers: tuple[RotaryLayer, ...]
    names: TensorNames
    vector: VectorConfig
    embed_scale: float = 1.0
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_mlp_bias: bool = False

    @property
    def num_layers(self) -> int:
        """The number of layers."""
        return len(self.layers)

    @property
    def vector_size(self) -> int:
        """The dimension of a text's vector."""
        return self.vector.size(self.hidden_size)
