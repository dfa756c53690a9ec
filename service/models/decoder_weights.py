"""Weight specs of a decoder: the checkpoint tensors that make each weight, under Hugging Face's names.

Source: transformers `models/llama/modeling_llama.py` (parameter names; a linear layer stores [out, in]).
"""

from dataclasses import replace

import numpy as np

from service.models.config import DecoderConfig
from service.models.quantization import Quantization, quantized_specs
from service.models.weight_spec import FLOAT32, TensorSource, WeightSpec


def decoder_weight_specs(
    config: DecoderConfig,
    dtype: np.dtype = FLOAT32,
    quantization: Quantization = Quantization.NONE,
    weight_dtype: np.dtype | None = None,
) -> tuple[WeightSpec, ...]:
    """Name every weight array of a decoder, in the order of use.

    Args:
        config: of the model.
        dtype: of arrays that are not quantized.
        quantization: of the weights of products.
        weight_dtype: of those of them that are not quantized; None for `dtype`.
    """
    embed, vocab = config.hidden_size, config.vocab_size
    specs = [_product("embed", ("vocab", "embed"), (vocab, embed), "model.embed_tokens.weight")]
    for layer in range(config.num_layers):
        specs += _attention(config, layer) + _mlp(config, layer)
    specs.append(_plain("final_norm", ("embed",), (embed,), "model.norm.weight"))
    if not config.has_tied_embeddings:
        specs.append(_product("unembed", ("vocab", "embed"), (vocab, embed), "lm_head.weight"))
    wide = (replace(spec, dtype=weight_dtype if weight_dtype and spec.num_in_axes else dtype) for spec in specs)
    return quantized_specs(wide, quantization, config.layer_storage)


def _attention(config: DecoderConfig, layer: int) -> list[WeightSpec]:
    embed, heads, dim = config.hidden_size, config.num_kv_heads, config.head_dim
    # Name, how many of them belong to a key-value head, and how often each comes.
    members_of = (("q", config.group_size, 1), ("k", 1, config.kv_copies), ("v", 1, config.kv_copies))
    ours, theirs = f"layers.{layer}.", f"model.layers.{layer}."
    specs = [
        _plain(ours + "attention_norm", ("embed",), (embed,), theirs + "input_layernorm.weight"),
        WeightSpec(
            ours + "qkv",
            ("kv_head", "qkv_group", "head_dim", "embed"),
            (heads, config.group_size + 2, dim, embed),
            tuple(
                TensorSource(
                    f"{theirs}self_attn.{name}_proj.weight",
                    shape=(heads // copies * members * dim, embed),
                    view=(heads, members, dim, embed),
                    copies=copies,
                )
                for name, members, copies in members_of
            ),
            concat_axis=1,
            num_in_axes=1,
        ),
        # Two axes: of four, a TPU would tile the last two, and lay the array out anew in each step.
        _product(
            ours + "output", ("embed", "heads"), (embed, config.num_heads * dim), theirs + "self_attn.o_proj.weight"
        ),
    ]
    if config.has_qkv_bias:
        sources = tuple(
            TensorSource(
                f"{theirs}self_attn.{name}_proj.bias",
                shape=(heads // copies * members * dim,),
                view=(heads, members, dim),
                copies=copies,
            )
            for name, members, copies in members_of
        )
        shape = (heads, config.group_size + 2, dim)
        specs.append(WeightSpec(ours + "qkv_bias", ("kv_head", "qkv_group", "head_dim"), shape, sources, concat_axis=1))
    if config.has_output_bias:
        specs.append(_plain(ours + "output_bias", ("embed",), (embed,), theirs + "self_attn.o_proj.bias"))
    if config.has_qk_norm:
        specs.append(_plain(ours + "query_norm", ("head_dim",), (dim,), theirs + "self_attn.q_norm.weight"))
        specs.append(_plain(ours + "key_norm", ("head_dim",), (dim,), theirs + "self_attn.k_norm.weight"))
    return specs


def _mlp(config: DecoderConfig, layer: int) -> list[WeightSpec]:
    embed, mlp = config.hidden_size, config.mlp_size
    ours, theirs = f"layers.{layer}.", f"model.layers.{layer}."
    gate_up = tuple(
        TensorSource(f"{theirs}mlp.{name}_proj.weight", shape=(mlp, embed), view=(1, mlp, embed))
        for name in ("gate", "up")
    )
    specs = [
        _plain(ours + "mlp_norm", ("embed",), (embed,), theirs + "post_attention_layernorm.weight"),
        WeightSpec(ours + "gate_up", ("gate_up", "mlp", "embed"), (2, mlp, embed), gate_up, num_in_axes=1),
        _product(ours + "down", ("embed", "mlp"), (embed, mlp), theirs + "mlp.down_proj.weight"),
    ]
    if config.has_mlp_bias:
        biases = tuple(
            TensorSource(f"{theirs}mlp.{name}_proj.bias", shape=(mlp,), view=(1, mlp)) for name in ("gate", "up")
        )
        specs.append(WeightSpec(ours + "gate_up_bias", ("gate_up", "mlp"), (2, mlp), biases))
        specs.append(_plain(ours + "down_bias", ("embed",), (embed,), theirs + "mlp.down_proj.bias"))
    return specs


def _plain(name: str, axes: tuple[str, ...], shape: tuple[int, ...], tensor: str) -> WeightSpec:
    return WeightSpec(name, axes, shape, (TensorSource(tensor, shape=shape, view=shape),))


def _product(name: str, axes: tuple[str, ...], shape: tuple[int, ...], tensor: str) -> WeightSpec:
    return replace(_plain(name, axes, shape, tensor), num_in_axes=1)
