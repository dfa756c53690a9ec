"""Log-probabilities of drawn tokens and of prompts: how they are computed, and how they travel to the host.

They are the model's own, in nats: a softmax of its scores before temperature and every other option, as vLLM has it by
default. One row of integers per token, so that a step has one small array to copy:

    | its log-probability | its rank | ids of the likeliest, 20 | their log-probabilities, 20 |   floats by their bits
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from service.engine.request import MAX_LOGPROBS, TokenLogprobs

FIRST_TOP = 2  # the place of the likeliest token's id
PACKED_LOGPROBS = FIRST_TOP + 2 * MAX_LOGPROBS
# Positions of a prompt whose scores lie in memory at once.
PROMPT_SLICE_TOKENS = 8


def pack_logprobs(logits: Float[Array, "row vocab"], token_ids: Int[Array, " row"]) -> Int[Array, "row packed"]:
    """Return the log-probability of one token of each row, and the likeliest ones with theirs."""
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


def pack_prompt_logprobs(
    hidden: Float[Array, "token hidden"],
    target_ids: Int[Array, " token"],
    logits_of: Callable[[Float[Array, "sample hidden"]], Float[Array, "sample vocab"]],
) -> Int[Array, "token packed"]:
    """Return the same of the token that follows each position, a few positions at a time."""

    def one(position: tuple[Float[Array, " hidden"], Int[Array, ""]]) -> Int[Array, " packed"]:
        state, target_id = position
        return pack_logprobs(logits_of(state[None]), target_id[None])[0]

    return jax.lax.map(one, (hidden, target_ids), batch_size=min(PROMPT_SLICE_TOKENS, hidden.shape[0]))


def unpack_logprobs(packed: Int[np.ndarray, " packed"], num_top: int) -> TokenLogprobs:
    """Read one row on the host."""
    logprobs = packed.view(np.float32)
    ids = packed[FIRST_TOP:][:num_top].tolist()
    top = logprobs[FIRST_TOP + MAX_LOGPROBS :][:num_top].tolist()
    pairs = tuple((token_id, logprob) for token_id, logprob in zip(ids, top, strict=True) if token_id >= 0)
    return TokenLogprobs(float(logprobs[0]), int(packed[1]), pairs)
