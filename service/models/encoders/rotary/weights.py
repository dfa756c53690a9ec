"""Weight specs of an encoder with rotary positions, under the names of its family.

The names are those of the bare model. A checkpoint of a model with a head has `model.` before them.
"""

from dataclasses import replace

import numpy as np

from service.models.encoders.rotary.config import RotaryConfig
from service.models.encoders.weights import dense_weight_specs, plain
from service.models.weight_spec import FLOAT32, TensorSource, WeightSpec


def rotary_weight_specs(config: RotaryConfig, dtype: np.dtype = FLOAT32) -> tuple[WeightSpec, ...]:
    """Name every weight array, in the order of use."""
    names, embed = config.names, config.hidden_size
    shape, scores = (config.vocab_size, embed), config.vector.score_tokens
    shared = ("lm_head.weight",) if scores is not None and scores.is_tied else ()
    table = TensorSource(f"{names.embed}.weight", shape, shape, also=shared)
    specs = [WeightSpec("embed", ("vocab", "embed"), shape, (table,))]
    if names.embed_norm is not None:
        specs.append(_norm("embed_norm", embed, names.embed_norm))
    for layer in range(config.num_layers):
        specs += _layer(config, layer)
    specs.append(_norm("final_norm", embed, names.final_norm))
    specs += dense_weight_specs(config.vector)
    if scores is not None and not scores.is_tied:
        specs.append(plain("unembed", ("vocab", "embed"), shape, "lm_head.weight"))
    return tuple(replace(spec, dtype=dtype) for spec in specs)


def _layer(config: RotaryConfig, layer: int) -> list[WeightSpec]:
    names, embed, dim = config.names, config.hidden_size, config.head_dim
    ours = theirs = f"layers.{layer}."
    heads = (config.num_heads, config.num_kv_heads, config.num_kv_heads)
    # The heads of each tensor: of all three kinds, if one tensor has them.
    parts = heads if len(names.qkv) > 1 else (sum(heads),)
    pairs = [(f"{theirs}{name}", count) for name, count in zip(names.qkv, parts, strict=True)]
    qkv = tuple(TensorSource(f"{name}.weight", (num * dim, embed), (num, dim, embed)) for name, num in pairs)
    rows = 2 * config.mlp_size // len(names.gate_up)
    gate_up = tuple(TensorSource(f"{theirs}{name}.weight", (rows, embed), (rows, embed)) for name in names.gate_up)
    width = config.num_heads * dim
    norms = {
        "attention_norm": (embed, names.attention_norm if config.layers[layer].has_attention_norm else None),
        "query_norm": (dim, names.query_norm),
        "key_norm": (dim, names.key_norm),
        "attention_post_norm": (embed, names.attention_post_norm),
        "mlp_norm": (embed, names.mlp_norm),
        "mlp_post_norm": (embed, names.mlp_post_norm),
    }
    specs = [
        WeightSpec(ours + "qkv", ("head", "head_dim", "embed"), (sum(heads), dim, embed), qkv),
        plain(ours + "output", ("embed", "head"), (embed, width), f"{theirs}{names.output}.weight"),
        WeightSpec(ours + "gate_up", ("mlp", "embed"), (2 * config.mlp_size, embed), gate_up),
        plain(ours + "down", ("embed", "mlp"), (embed, config.mlp_size), f"{theirs}{names.down}.weight"),
        *(_norm(ours + name, size, f"{theirs}{tensor}") for name, (size, tensor) in norms.items() if tensor),
    ]
    if config.has_qkv_bias:
        biases = tuple(TensorSource(f"{name}.bias", (num * dim,), (num, dim)) for name, num in pairs)
        specs.append(WeightSpec(ours + "qkv_bias", ("head", "head_dim"), (sum(heads), dim), biases))
    if config.has_output_bias:
        specs.append(plain(ours + "output_bias", ("embed",), (embed,), f"{theirs}{names.output}.bias"))
    if config.has_mlp_bias:
        biases = tuple(TensorSource(f"{theirs}{name}.bias", (rows,), (rows,)) for name in names.gate_up)
        specs.append(WeightSpec(ours + "gate_up_bias", ("mlp",), (2 * config.mlp_size,), biases))
        specs.append(plain(ours + "down_bias", ("embed",), (embed,), f"{theirs}{names.down}.bias"))
    return specs


def _norm(name: str, size: int, tensor: str) -> WeightSpec:
    return plain(name, ("embed",), (size,), f"{tensor}.weight")
