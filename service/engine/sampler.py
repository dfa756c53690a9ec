"""Logits to token ids, on the device: one executable whatever the options."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt


def sample(
    logits: Float[Array, "seq vocab"],
    temperature: Float[Array, " seq"],  # [0, 2]; 0 takes the likeliest
    top_p: Float[Array, " seq"],  # probability mass kept, (0, 1]
    seeds: UInt[Array, "seq 2"],
    positions: Int[Array, " seq"],  # of the token to be drawn; with the seed it fixes the draw
) -> Int[Array, " seq"]:
    """Draw one token per sequence; greedy rows cost no sort unless a neighbour draws.

    The draw depends on the row alone, so the same seed gives the same tokens alone or in a crowd.

    Source: Gumbel-max, Maddison et al. 2014, arXiv:1411.0030; nucleus, Holtzman et al. 2020, arXiv:1904.09751.
    """
    greedy = jnp.argmax(logits, axis=-1).astype(jnp.int32)

    def draw() -> Int[Array, " seq"]:
        scaled = logits / jnp.maximum(temperature, 1e-6)[:, None]
        kept = jnp.where(_is_in_nucleus(scaled, top_p), scaled, -jnp.inf)
        drawn = jnp.argmax(kept + _gumbel(seeds, positions, logits.shape[-1]), axis=-1)
        return jnp.where(temperature > 0, drawn.astype(jnp.int32), greedy)

    return jax.lax.cond(jnp.any(temperature > 0), draw, lambda: greedy)


def _is_in_nucleus(logits: Float[Array, "seq vocab"], top_p: Float[Array, " seq"]) -> Bool[Array, "seq vocab"]:
    """Tell the smallest set of likeliest tokens whose mass reaches `top_p`; the likeliest is always in it."""
    probabilities = jax.nn.softmax(logits, axis=-1)
    descending = -jnp.sort(-probabilities, axis=-1)
    mass_before = jnp.cumsum(descending, axis=-1) - descending
    is_kept = mass_before < top_p[:, None]
    smallest_kept = jnp.min(jnp.where(is_kept, descending, jnp.inf), axis=-1)
    return probabilities >= smallest_kept[:, None]


def _gumbel(seeds: UInt[Array, "seq 2"], positions: Int[Array, " seq"], vocab_size: int) -> Float[Array, "seq vocab"]:
    def noise(seed: UInt[Array, "2"], position: Int[Array, ""]) -> Float[Array, " vocab"]:
        key = jax.random.fold_in(jax.random.wrap_key_data(seed, impl="threefry2x32"), position)
        return jax.random.gumbel(key, (vocab_size,), jnp.float32)

    return jax.vmap(noise)(seeds, positions)
