"""Log-probabilities of sampled tokens and of prompts, computed on the device.

They are the model's own, in nats: a softmax of its logits before temperature and every other option, as in vLLM by
default. One row of integers per token, so that the host copies a single small array per step:

    | its log-probability | its rank | ids of the likeliest, 20 | their log-probabilities, 20 |   floats by their bits
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from service.engine.limits import MAX_LOGPROBS

FIRST_TOP = 2  # column of the likeliest token's id
PACKED_LOGPROBS = FIRST_TOP + 2 * MAX_LOGPROBS  # columns


def pack_scores(logits: Float[Array, "token vocab"], token_ids: Int[Array, " token"]) -> Int[Array, "token packed"]:
    """Return the log-probability of one token for each row of logits, in the same layout without ranks and others."""
    chosen = jnp.take_along_axis(logits, token_ids[:, None], axis=1)
    bits = jax.lax.bitcast_convert_type(chosen - jax.nn.logsumexp(logits, axis=1, keepdims=True), jnp.int32)
    return jnp.pad(bits, ((0, 0), (0, PACKED_LOGPROBS - 1)))


def pack_logprobs(logits: Float[Array, "token vocab"], token_ids: Int[Array, " token"]) -> Int[Array, "token packed"]:
    """Return the log-probability of one token for each row of logits, and the likeliest tokens with theirs."""
    normalizer = jax.nn.logsumexp(logits, axis=1, keepdims=True)
    chosen = jnp.take_along_axis(logits, token_ids[:, None], axis=1)
    rank = jnp.sum(logits >= chosen, axis=1, keepdims=True, dtype=jnp.int32)
    num_top = min(MAX_LOGPROBS, logits.shape[1])
    top, top_ids = jax.lax.top_k(logits, num_top)
    missing = ((0, 0), (0, MAX_LOGPROBS - num_top))
    logprobs = jnp.concatenate([chosen - normalizer, jnp.pad(top - normalizer, missing)], axis=1)
    bits = jax.lax.bitcast_convert_type(logprobs, jnp.int32)
    ids = jnp.pad(top_ids.astype(jnp.int32), missing, constant_values=-1)
    return jnp.concatenate([bits[:, :1], rank, ids, bits[:, 1:]], axis=1)
