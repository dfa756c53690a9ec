"""Weight specs of an encoder: the checkpoint tensors that make each weight, under Hugging Face's names.

Source: transformers `models/bert/modeling_bert.py` (parameter names; a linear layer stores [out, in]).
"""

from dataclasses import replace

import numpy as np

from service.models.encoders.config import EncoderConfig, VectorConfig
from service.models.encoders.token_heads import HEAD_SIZES
from service.models.weight_spec import FLOAT32, TensorSource, WeightSpec


def encoder_weight_specs(config: EncoderConfig, dtype: np.dtype = FLOAT32) -> tuple[WeightSpec, ...]:
    """Name every weight array of an encoder, in the order of use."""
    embed, theirs = config.hidden_size, "embeddings."
    specs = [
        plain("words", ("vocab", "embed"), (config.vocab_size, embed), f"{theirs}word_embeddings.weight"),
        plain("positions", ("position", "embed"), (config.num_positions, embed), f"{theirs}position_embeddings.weight"),
        *(_types(config) if config.num_token_types else ()),
        *_norm("embed_norm", embed, f"{theirs}LayerNorm"),
    ]
    for layer in range(config.num_layers):
        specs += _attention(config, layer) + _mlp(config, layer)
    specs += dense_weight_specs(config.vector)
    for head in config.vector.token_heads.names:
        size = HEAD_SIZES[head] or embed
        specs.append(plain(head, ("head", "embed"), (size, embed), f"{head}.weight"))
        specs.append(plain(f"{head}.bias", ("head",), (size,), f"{head}.bias"))
    return tuple(replace(spec, dtype=dtype) for spec in specs)


def dense_weight_specs(vector: VectorConfig) -> list[WeightSpec]:
    """Name the arrays of the layers after the pooling."""
    specs = []
    for index, dense in enumerate(vector.dense):
        name, tensor = f"dense.{index}", dense.tensor
        specs.append(plain(name, ("dense", "embed"), (dense.out_size, dense.in_size), f"{tensor}.weight"))
        if dense.has_bias:
            specs.append(plain(f"{name}.bias", ("dense",), (dense.out_size,), f"{tensor}.bias"))
        if dense.norm is not None:
            specs.append(plain(f"{name}.norm", ("dense",), (dense.out_size,), f"{dense.norm}.weight"))
    return specs


def plain(name: str, axes: tuple[str, ...], shape: tuple[int, ...], tensor: str) -> WeightSpec:
    """Return the spec of an array that is one tensor, as it is."""
    return WeightSpec(name, axes, shape, (TensorSource(tensor, shape=shape, view=shape),))


def _types(config: EncoderConfig) -> list[WeightSpec]:
    shape = (config.num_token_types, config.hidden_size)
    return [plain("types", ("type", "embed"), shape, "embeddings.token_type_embeddings.weight")]


def _attention(config: EncoderConfig, layer: int) -> list[WeightSpec]:
    embed, heads, dim, names = config.hidden_size, config.num_heads, config.head_dim, config.names
    ours, theirs = f"layers.{layer}.", f"{names.layer}{layer}."
    joined = [f"{theirs}{name}" for name in (names.query, names.key, names.value)]
    weights = tuple(
        TensorSource(f"{name}.weight", shape=(embed, embed), view=(1, heads, dim, embed)) for name in joined
    )
    biases = tuple(TensorSource(f"{name}.bias", shape=(embed,), view=(1, heads, dim)) for name in joined)
    output = f"{theirs}{names.output}.weight"
    return [
        WeightSpec(ours + "qkv", ("qkv", "kv_head", "head_dim", "embed"), (3, heads, dim, embed), weights),
        WeightSpec(ours + "qkv_bias", ("qkv", "kv_head", "head_dim"), (3, heads, dim), biases),
        WeightSpec(
            ours + "output",
            ("embed", "kv_head", "head_dim"),
            (embed, heads, dim),
            (TensorSource(output, shape=(embed, embed), view=(embed, heads, dim)),),
        ),
        plain(ours + "output_bias", ("embed",), (embed,), f"{theirs}{names.output}.bias"),
        *_norm(ours + "attention_norm", embed, f"{theirs}{names.attention_norm}"),
        *(_position_bias(config, ours) if config.num_position_buckets else ()),
    ]


def _position_bias(config: EncoderConfig, ours: str) -> list[WeightSpec]:
    """Return the table of biases, which all layers share, as an array of a layer: the table is small."""
    tensor = f"{config.names.position_bias}.weight"
    shape = (config.num_position_buckets, config.num_heads)
    return [plain(ours + "position_bias", ("bucket", "kv_head"), shape, tensor)]


def _mlp(config: EncoderConfig, layer: int) -> list[WeightSpec]:
    embed, mlp, names = config.hidden_size, config.mlp_size, config.names
    ours, theirs = f"layers.{layer}.", f"{names.layer}{layer}."
    return [
        plain(ours + "up", ("mlp", "embed"), (mlp, embed), f"{theirs}{names.up}.weight"),
        plain(ours + "up_bias", ("mlp",), (mlp,), f"{theirs}{names.up}.bias"),
        plain(ours + "down", ("embed", "mlp"), (embed, mlp), f"{theirs}{names.down}.weight"),
        plain(ours + "down_bias", ("embed",), (embed,), f"{theirs}{names.down}.bias"),
        *_norm(ours + "mlp_norm", embed, f"{theirs}{names.mlp_norm}"),
    ]


def _norm(name: str, size: int, tensor: str) -> list[WeightSpec]:
    return [
        plain(name, ("embed",), (size,), f"{tensor}.weight"),
        plain(f"{name}_bias", ("embed",), (size,), f"{tensor}.bias"),
    ]
