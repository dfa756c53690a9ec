"""EAGLE-3 heads, which draft for one model from its hidden states: their `config.json` and their tensors; no jax.

A head is one layer. Its attention reads, side by side, the embedding of a token and what `fc` makes of three hidden
states of the position before it; so it foresees the token after that one. Further on, its own result takes their place.
Source: Li et al. 2025, arXiv:2503.01840; vLLM `models/llama_eagle3.py`, `configs/speculators/algos.py`; SGLang
`models/llama_eagle3.py`; SpecForge `modeling/draft/llama3_eagle.py` (names of tensors, order of the parts).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from service.models.config import HubConfig
from service.models.decoder_weights import decoder_weight_specs
from service.models.description import DecoderConfig, Layer, Norm
from service.models.families.hub_keys import resolved
from service.models.families.llama import NAMES, read_attention, read_decoder, read_feed_forward, read_norm
from service.models.quantization import Quantization, quantized_specs, scale_name
from service.models.weight_spec import TensorSource, WeightSpec

# Of the files of `speculators`, which have the values of the layer in a part of their own.
SPECULATORS, LAYER = "speculators_model_type", "transformer_layer_config"
ARCHITECTURES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM")
# In the values of a configuration: the names of the tensors that the files have.
TENSORS = "levserve_tensors"
NUM_TAPS = 3
EMBEDDINGS = ("embed", scale_name("embed"))  # the arrays that a head without embeddings has of its target
_NAMES = replace(NAMES, prefix="", attention_norm="hidden_norm", embedding_norm="input_layernorm")
_INTEGER = np.dtype(np.int32)


@dataclass(frozen=True)
class Eagle3Config:
    """A head, and what it expects of its target."""

    decoder: DecoderConfig  # its layer, and the way to the logits of its own vocabulary
    vocab_size: int  # of its target
    target_size: int  # of the hidden states of its target
    taps: tuple[int, ...]  # layers of its target, before which hidden states are taken
    layer_name: str  # of the tensors of its layer, with the point at the end
    has_embeddings: bool  # whether it has its own
    has_ids: bool  # whether its vocabulary is a part of its target's, whose tokens a tensor says
    hidden_norm: Norm | None  # of what enters the layer, residual and all; None if only what attention reads has one


def is_eagle3(values: Mapping[str, Any]) -> bool:
    """Return whether a `config.json` is that of a head."""
    if values.get(SPECULATORS) == "eagle3":
        return True
    architectures = values.get("architectures")
    return isinstance(architectures, list) and any(name in ARCHITECTURES for name in architectures)


def read_eagle3(uri: str, values: Mapping[str, Any], num_layers: int) -> Eagle3Config:
    """Read the `config.json` of a head.

    Args:
        uri: the head's address, for messages.
        values: the content, with the names of its tensors.
        num_layers: of its target.

    Raises:
        UnsupportedModel: a value is missing or malformed, or asks for a feature that is not served.
    """
    if values.get(SPECULATORS) is not None:
        layer = HubConfig(uri, values).part(LAYER)
        layer.refuse_unless("model_type", "llama")
        values = {**layer.values, **{key: value for key, value in values.items() if value is not None}}
    config = resolved(HubConfig(uri, {**values, "model_type": "llama"}), "llama")
    config.refuse_unless("num_hidden_layers", 1)
    for key in ("bias", "parallel_drafting", "fc_norm", "norm_output", "norm_before_fc", "qkv_bias"):
        config.refuse_unless(key, False)
    inner = config.part("eagle_config")
    inner.refuse_unless("use_aux_hidden_state", True)
    norm, names = read_norm(config), list(values.get(TENSORS, ()))
    is_before = config.flag("norm_before_residual")
    has_bias = config.flag("attention_bias")
    attention = read_attention(config, has_bias=has_bias, has_output_bias=has_bias)
    feed_forward = read_feed_forward(config, has_bias=config.flag("mlp_bias"))
    layer = Layer(attention, feed_forward, None if is_before else norm, norm, embedding_norm=norm)
    decoder = read_decoder(config, [layer], _NAMES, has_tied_embeddings=False)
    vocab_size, size = decoder.vocab_size, decoder.hidden_size
    num_drafted = config.optional_int("draft_vocab_size", vocab_size)
    has_ids = _has(names, "d2t")
    if not has_ids and num_drafted != vocab_size:
        raise config.refuse(f"draft_vocab_size is {num_drafted}, and no tensor d2t says which tokens these are.")
    return Eagle3Config(
        replace(decoder, vocab_size=num_drafted, layer_storage=None),
        vocab_size,
        target_size=config.optional_int("target_hidden_size", size),
        taps=_taps(config, inner, num_layers),
        layer_name=next((name for name in ("layers.0.", "model.layers.0.") if _begins(names, name)), "midlayer."),
        has_embeddings=_has(names, "embed_tokens.weight"),
        has_ids=has_ids,
        hidden_norm=norm if is_before else None,
    )


def eagle3_weight_specs(
    config: Eagle3Config, dtype: np.dtype, quantization: Quantization, weight_dtype: np.dtype | None
) -> tuple[WeightSpec, ...]:
    """Name every weight array of a head, but the embeddings that it has of its target.

    Args:
        config: the head.
        dtype: of arrays that are not quantized.
        quantization: how weights of products are stored.
        weight_dtype: of those of them that are not quantized; None for `dtype`.
    """
    of_target = replace(config.decoder, vocab_size=config.vocab_size)
    embeddings, others = (
        [spec for spec in decoder_weight_specs(each, dtype, quantization, weight_dtype) if is_embedding(spec) == wanted]
        for each, wanted in ((of_target, True), (config.decoder, False))
    )
    size, read = config.decoder.hidden_size, len(config.taps) * config.target_size
    source = TensorSource("fc.weight", (size, read), (size, read))
    wide = weight_dtype or dtype
    joined = WeightSpec("fc", ("embed", "tapped"), (size, read), (source,), dtype=wide, num_in_axes=1)
    made = [*(embeddings if config.has_embeddings else ()), *quantized_specs([joined], quantization), *others]
    if config.hidden_norm is not None:
        source = TensorSource(f"{config.layer_name}hidden_norm.weight", (size,), (size,))
        made.append(WeightSpec("hidden_norm", ("embed",), (size,), (source,), dtype=dtype))
    if config.has_ids:
        shape = (config.decoder.vocab_size,)
        ids = TensorSource("d2t", shape, shape, is_integer=True)
        made.append(WeightSpec("ids", ("drafted",), shape, (ids,), dtype=_INTEGER))
    return tuple(replace(spec, sources=tuple(_named(s, config.layer_name) for s in spec.sources)) for spec in made)


def is_embedding(spec: WeightSpec) -> bool:
    """Return whether an array is of the embeddings of a model."""
    return spec.name in EMBEDDINGS


def _named(source: TensorSource, layer_name: str) -> TensorSource:
    """Return a tensor under the name that a head's files have for it."""
    made_from = source.made_from
    return replace(
        source,
        name=source.name.replace("layers.0.", layer_name, 1) if source.name.startswith("layers.0.") else source.name,
        made_from=None if made_from is None else _named(made_from, layer_name),
    )


def _taps(config: HubConfig, inner: HubConfig, num_layers: int) -> tuple[int, ...]:
    """Return the layers of the target before which hidden states are taken.

    Source: vLLM `v1/worker/gpu_model_runner.py` (eagle_aux_hidden_state_layer_ids: a layer's input); SGLang
    `model_executor/model_runner.py` (the same in eagle_config: a layer's output) and both for those of a file without.
    """
    key = "eagle_aux_hidden_state_layer_ids"
    if inner.values.get(key):
        stated, shift = inner.values[key], 1
    elif config.values.get(key):
        stated, shift = config.values[key], 0
    else:
        stated, shift = [2, num_layers // 2, num_layers - 3], 0
    if not isinstance(stated, list) or not all(isinstance(number, int) for number in stated):
        raise config.refuse(f"{key} is {stated!r}, which should be numbers of layers.")
    taps = tuple(number + shift for number in stated)
    if len(taps) != NUM_TAPS or sorted({*taps}) != list(taps) or not all(0 <= tap < num_layers for tap in taps):
        raise config.refuse(
            f"its head reads the hidden states before the layers {', '.join(map(str, taps))}, which are no "
            f"{NUM_TAPS} of the {num_layers} of the model in their order."
        )
    return taps


def _has(names: Sequence[str], name: str) -> bool:
    return any(each == name or each.endswith(f".{name}") for each in names)


def _begins(names: Sequence[str], begin: str) -> bool:
    return any(name.startswith(begin) for name in names)
