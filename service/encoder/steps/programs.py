"""The programs of an encoder: each compiled function with its name and its shapes."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from service.compile.program import Program
from service.encoder.shapes import EncoderShapes, num_texts
from service.encoder.steps.names import embed_name, layer_group_name, vectors_name
from service.models.encoders.encoder import Encoder
from service.models.encoders.packing import GroupInputs, PackedTexts, PackedTokens, VectorInputs
from service.models.encoders.rotary.encoder import RotaryEncoder
from service.models.interface import LayerGroup, Weights

type AnyEncoder = Encoder | RotaryEncoder


def encoder_programs(
    model: AnyEncoder, shapes: EncoderShapes, weight_shapes: Mapping[str, jax.ShapeDtypeStruct]
) -> list[Program]:
    """Return all programs of an encoder."""
    return [program for bucket in shapes.buckets for program in _of_bucket(model, bucket, weight_shapes)]


def _of_bucket(model: AnyEncoder, bucket: int, weights: Mapping[str, jax.ShapeDtypeStruct]) -> Iterator[Program]:
    tokens, texts = _ints(bucket), _ints(num_texts(bucket))
    hidden: Any = jax.ShapeDtypeStruct((bucket, model.config.hidden_size), model.dtype)
    yield Program(
        embed_name(bucket), functools.partial(_embed, model), weights, inputs=PackedTokens(tokens, tokens, tokens)
    )
    for group in {group.kind: group for group in reversed(model.layer_groups)}.values():
        yield Program(
            layer_group_name(bucket, group),
            functools.partial(_run_layer_group, model, group),
            [weights[name] for name in group.weights],
            inputs=GroupInputs(hidden, tokens, tokens, _ints()),
        )
    yield Program(
        vectors_name(bucket),
        functools.partial(_vectors, model),
        weights,
        inputs=VectorInputs(hidden, PackedTexts(tokens, texts, texts, texts)),
    )


def _ints(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def _embed(model: AnyEncoder, weights: Weights, state: Any, tokens: PackedTokens) -> tuple[Any, jax.Array]:
    return state, model.embed(weights, tokens)


def _run_layer_group(
    model: AnyEncoder, group: LayerGroup, weights: Sequence[jax.Array], state: Any, inputs: Any
) -> tuple[Any, jax.Array]:
    return state, model.run_layer_group(group, weights, inputs)


def _vectors(model: AnyEncoder, weights: Weights, state: Any, inputs: Any) -> tuple[Any, jax.Array]:
    return state, model.vectors(weights, inputs.hidden, inputs.texts)
