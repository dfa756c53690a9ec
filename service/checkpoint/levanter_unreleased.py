"""Runs of models that no release of Levanter has: their configurations, and their arrays under Hugging Face's names.

Levanter's code for them is not here to read them with, so each is a table: what its configuration says by default, and
where in a checkpoint a tensor lies.
Source: Levanter `models/hero.py`, `models/hero_model.py`, `models/hero_serialization.py`, `models/qwen35.py`,
`layers/gated_deltanet.py`.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from service.errors import MalformedCheckpoint, UnsupportedModel
from service.models.families.snowball import RUN_KEYS
from service.models.registry import RUN

type Arrays = Mapping[str, np.ndarray]  # by their paths in a checkpoint, below `model/`

# What a configuration says where a file is silent. None of the training keys changes what a model computes.
_TRAINING = dict.fromkeys(
    (
        *("attention_implementation", "inference_attention_implementation", "moe_implementation", "tokenizer"),
        *("gradient_checkpointing", "scan_layers", "reference_checkpoint", "hf_max_position_embeddings"),
        *("attn_backend", "flash_attention_block_size", "upcast_attn", "capacity_factor", "initializer_std"),
    )
)
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "hero": {
        **{"hidden_dim": 6144, "intermediate_dim": 3072, "shared_expert_intermediate_dim": 3072},
        **{"num_shared_experts": 2, "num_experts": 384, "num_experts_per_token": 8, "latent_dim": 3072},
        **{"num_layers": 48, "num_heads": 48, "num_kv_heads": 12, "local_kv_heads": 12, "global_kv_heads": 6},
        **{"head_dim": 128, "max_seq_len": 4096, "sliding_window": 2048, "global_every": 4, "layer_norm_eps": 1e-5},
        **{"qk_mult": 1.3, "sconv": True, "sconv_kernel": 4, "sconv_sites": ["k", "attn", "mlp"]},
        **{"rope": {"theta": 10_000.0}, "rope_fused": True},
    },
    "qwen35": {
        **{"max_seq_len": 262_144, "hidden_dim": 1024, "intermediate_dim": 3584, "num_layers": 24, "num_heads": 8},
        **{"num_kv_heads": 2, "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 16},
        **{"linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4},
        **{"full_attention_interval": 4, "layer_types": None, "activation_function": "silu", "use_bias": False},
        **{"layer_norm_epsilon": 1e-6, "tie_word_embeddings": True},
        **{"rope": {"theta": 10_000_000.0, "partial_rotary_factor": 0.25}},
    },
}
_QWEN_KEYS = {
    **{"max_seq_len": "max_position_embeddings", "hidden_dim": "hidden_size", "intermediate_dim": "intermediate_size"},
    **{"num_layers": "num_hidden_layers", "num_heads": "num_attention_heads", "num_kv_heads": "num_key_value_heads"},
    "layer_norm_epsilon": "rms_norm_eps",
}
# What the arrays of a run are called in an export; those in `_TRANSPOSED` are stored [in, out].
_GATES = {"w_down": "down_proj.weight", "w_up": "up_proj.weight"}
_PROJECTIONS = {"w_gate": "gate_proj.weight", **_GATES}
_HERO = {
    "transformer/token_embed": "model.embed_tokens.weight",
    "transformer/embed_norm/weight": "model.embed_norm.weight",
    **{f"transformer/embed_gated_norm/{own}": f"model.embed_gated_norm.{name}" for own, name in _GATES.items()},
    "transformer/final_norm/weight": "model.norm.weight",
    **{f"transformer/final_gated_norm/{own}": f"model.final_gated_norm.{name}" for own, name in _GATES.items()},
    "transformer/output_proj": "lm_head.weight",
}
_HERO_LAYERS = "transformer/stacked_blocks/stacked/"
_HERO_LAYER = {
    "rms_attn/weight": "input_layernorm.weight",
    **{f"attn_gated_norm/{own}": f"attn_gated_norm.{name}" for own, name in _GATES.items()},
    **{f"attn/w_{part}": f"self_attn.{part}_proj.weight" for part in "qkvo"},
    "attn/attn_gate": "self_attn.attn_gate.weight",
    "attn/sconv_k/weight": "self_attn.sconv_k.weight",
    "sconv_attn/weight": "sconv_attn.weight",
    "rms_mlp/weight": "post_attention_layernorm.weight",
    **{f"mlp_gated_norm/{own}": f"mlp_gated_norm.{name}" for own, name in _GATES.items()},
    "mlp/router": "mlp.router.weight",
    "mlp/router_bias": "mlp.router.bias",
    "mlp/w_latent_down": "mlp.latent_down_proj.weight",
    "mlp/latent_norm/weight": "mlp.latent_norm.weight",
    "mlp/w_latent_up": "mlp.latent_up_proj.weight",
    "sconv_mlp/weight": "sconv_mlp.weight",
}
_TRANSPOSED = ("router", "attn_gate", "output_proj")  # and all that begin with `w_`
_QWEN = {
    "embeddings/token_embeddings/weight": "model.language_model.embed_tokens.weight",
    "transformer/norm/weight": "model.language_model.norm.weight",
    "lm_head/weight": "lm_head.weight",
}
_QWEN_LAYERS = "transformer/_layers/blocks/"
_QWEN_LAYER = {
    "linear_attn/conv_weight": "linear_attn.conv1d.weight",
    "linear_attn/o_norm/weight": "linear_attn.norm.weight",
}


def kind_of(values: Mapping[str, Any]) -> str | None:
    """Return the type of run whose export a `config.json` describes; None if Levanter's release reads that."""
    if values.get("model_type") == "grug_moe":
        return "hero" if values.get("grugmoe_artifact_schema_version") == 2 else None
    return "qwen35" if values.get("model_type") in ("qwen3_5", "qwen3_5_text") else None


def read_run(uri: str, name: str, model: Mapping[str, Any], vocab_size: int) -> dict[str, Any]:
    """Return the values that stand for a run, with all defaults written out.

    Args:
        uri: the checkpoint's address, for messages.
        name: the file's name, for messages.
        model: the `model:` part of its YAML.
        vocab_size: the number of token ids.

    Raises:
        MalformedCheckpoint: Levanter's configuration has no such key.
    """
    kind = str(model["type"])
    known = {"type", "vocab_size", *DEFAULTS[kind], *_TRAINING}
    if unknown := sorted(set(map(str, model)) - known):
        raise MalformedCheckpoint(uri, name, f"Levanter's {kind!r} has no {unknown[0]!r}.")
    given = {key: value for key, value in model.items() if key in DEFAULTS[kind]}
    return {"model_type": kind, "vocab_size": vocab_size, RUN: {**DEFAULTS[kind], **given, "type": kind}}


def run_of_export(uri: str, kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that stand for a run, from those of its export.

    Raises:
        UnsupportedModel: the export lacks a value that it has, or names a part that the run has not.
    """
    if kind == "hero":
        text, keys = values, {own: name for name, own in RUN_KEYS.items()}
        rope: Mapping[str, Any] = {"theta": values.get("rope_theta")}
    else:
        part = values.get("text_config")
        text, keys = part if isinstance(part, Mapping) else values, _QWEN_KEYS
        parameters = text.get("rope_parameters") or text
        rope = {"theta": parameters.get("rope_theta"), "partial_rotary_factor": parameters.get("partial_rotary_factor")}
    text = {**values, **text}
    given = {own: text[keys.get(own, own)] for own in DEFAULTS[kind] if text.get(keys.get(own, own)) is not None}
    default: Mapping[str, Any] = DEFAULTS[kind]["rope"]
    given["rope"] = {key: default[key] if rope[key] is None else rope[key] for key in default}
    if not isinstance(text.get("vocab_size"), int):
        raise UnsupportedModel(uri, "config.json: vocab_size is missing.")
    dtypes = {key: values[key] for key in ("dtype", "torch_dtype") if values.get(key) is not None}
    return {
        "model_type": kind,
        "vocab_size": text["vocab_size"],
        RUN: {**DEFAULTS[kind], **given, "type": kind},
        **dtypes,
    }


def named_tensors(kind: str, arrays: Arrays) -> dict[str, np.ndarray]:
    """Return the arrays of a run under the names of its export, as parts of the same memory."""
    named = _hero_tensors(arrays) if kind == "hero" else _qwen_tensors(arrays)
    return dict(named)


def _hero_tensors(arrays: Arrays) -> Iterator[tuple[str, np.ndarray]]:
    for path, array in arrays.items():
        if not path.startswith(_HERO_LAYERS):
            yield _HERO.get(path, path), _outputs_first(path, array)
            continue
        own = path.removeprefix(_HERO_LAYERS)
        for number, of_layer in enumerate(array):
            prefix, part = f"model.layers.{number}.", _outputs_first(own, of_layer)
            if own.startswith("mlp/expert_mlp/"):
                name = _PROJECTIONS[own.rpartition("/")[2]]
                yield from ((f"{prefix}mlp.experts.{expert}.{name}", each) for expert, each in enumerate(part))
            elif own.startswith("shared/"):
                _, expert, projection = own.split("/")
                yield f"{prefix}shared_experts.{expert}.{_PROJECTIONS[projection]}", part
            else:
                yield prefix + _HERO_LAYER.get(own, own), part


def _outputs_first(path: str, array: np.ndarray) -> np.ndarray:
    leaf = path.rpartition("/")[2]
    return np.swapaxes(array, -1, -2) if leaf.startswith("w_") or leaf in _TRANSPOSED else array


def _qwen_tensors(arrays: Arrays) -> Iterator[tuple[str, np.ndarray]]:
    for path, array in arrays.items():
        if not path.startswith(_QWEN_LAYERS):
            yield _QWEN.get(path, path), array
            continue
        number, _, own = path.removeprefix(_QWEN_LAYERS).partition("/")
        name = f"model.language_model.layers.{number}.{_QWEN_LAYER.get(own, own.replace('/', '.'))}"
        yield name, _as_matrix(own, array)


def _as_matrix(path: str, array: np.ndarray) -> np.ndarray:
    """Return a projection, whose axes of heads a run keeps apart, as [out, in]; of a convolution [channel, 1, tap]."""
    if path == "linear_attn/conv_weight":
        return array[:, None]
    if array.ndim < 3:
        return array
    if path.endswith(("o_proj/weight", "out_proj/weight")):
        return array.reshape(len(array), math.prod(array.shape[1:]))
    return array.reshape(math.prod(array.shape[:-1]), array.shape[-1])
