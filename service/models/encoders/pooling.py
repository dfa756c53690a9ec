"""Hidden states of packed texts to one vector per text, in float32.

Source: sentence-transformers 6.2 `sentence_transformer/modules/pooling.py`, `base/modules/dense.py` and `normalize.py`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from service.models.activations import activate
from service.models.encoders.config import Pooling, ScoreTokens, VectorConfig
from service.models.encoders.packing import PackedTexts
from service.models.interface import Weights

# Source: torch.nn.functional.normalize, its default eps.
SMALLEST_LENGTH = 1e-12


def text_vectors(
    weights: Weights, hidden: Float[Array, "token hidden"], texts: PackedTexts, way: VectorConfig
) -> Float[Array, "text vector"]:
    """Return each text's vector: pooled, through the dense layers, of length 1 if the model's are, and then cut."""
    vectors = pool(hidden, texts, way)
    for index, dense in enumerate(way.dense):
        vectors = vectors @ weights[f"dense.{index}"].astype(jnp.float32).T
        if dense.has_bias:
            vectors = vectors + weights[f"dense.{index}.bias"].astype(jnp.float32)[None]
        vectors = activate(vectors, dense.activation)
        if dense.norm is not None:
            vectors = _layer_norm(vectors, dense.norm_eps) * weights[f"dense.{index}.norm"].astype(jnp.float32)[None]
    if way.score_tokens is not None:
        return _score(weights, vectors, way.score_tokens)
    return (normalize(vectors) if way.is_normalized else vectors)[:, : way.kept_size]


def pool(hidden: Float[Array, "token hidden"], texts: PackedTexts, way: VectorConfig) -> Float[Array, "text pooled"]:
    """Reduce the hidden states of each text; a NaN stays in its own text."""
    wide, num_texts = hidden.astype(jnp.float32), len(texts.first)
    begin, first, last = (jnp.asarray(places) for places in (texts.first, texts.pooled_from, texts.last))
    segments = jnp.asarray(texts.segments)
    tokens = jnp.arange(len(segments))
    if not way.pools_prompts:  # a token of no text's segment is not summed
        segments = jnp.where(tokens >= first[segments], segments, num_texts)

    # Sums by segments and not products with a mask, in which a NaN would reach every text.
    def sums(of_tokens: Float[Array, "token _"]) -> Float[Array, "text _"]:
        return jax.ops.segment_sum(of_tokens, segments, num_texts)

    def pooled(pooling: Pooling) -> Float[Array, "text hidden"]:
        counts = (last - first + 1)[:, None].astype(jnp.float32)
        match pooling:
            case Pooling.CLS:
                return wide[first]
            case Pooling.LAST:
                return wide[last]
            case Pooling.MAX:
                return jax.ops.segment_max(wide, segments, num_texts)
            case Pooling.MEAN:
                return sums(wide) / counts
            case Pooling.MEAN_SQRT_LEN:
                return sums(wide) / jnp.sqrt(counts)
            case Pooling.WEIGHTED_MEAN:
                # Positions count from the text's begin, prompt included.
                weights = (tokens - begin[segments] + 1)[:, None].astype(jnp.float32)
                return sums(wide * weights) / sums(weights)

    return jnp.concatenate([pooled(pooling) for pooling in way.poolings], axis=-1)


def _layer_norm(vectors: Float[Array, "text hidden"], eps: float) -> Float[Array, "text hidden"]:
    """Source: Ba et al. 2016, arXiv:1607.06450."""
    centered = vectors - vectors.mean(-1, keepdims=True)
    return centered * jax.lax.rsqrt(jnp.square(centered).mean(-1, keepdims=True) + eps)


def _score(weights: Weights, vectors: Float[Array, "text hidden"], tokens: ScoreTokens) -> Float[Array, "text score"]:
    """Return the probability of one of two tokens, as if there were no others."""
    rows = weights["embed" if tokens.is_tied else "unembed"]
    difference = rows[tokens.yes_id].astype(jnp.float32) - rows[tokens.no_id].astype(jnp.float32)
    return jax.lax.logistic(jnp.sum(vectors * difference[None], axis=-1, keepdims=True))


def normalize(vectors: Float[Array, "text vector"]) -> Float[Array, "text vector"]:
    """Scale each vector to length 1."""
    lengths = jnp.sqrt(jnp.sum(jnp.square(vectors), axis=-1, keepdims=True))
    return vectors / jnp.maximum(lengths, SMALLEST_LENGTH)
