"""The causal convolution of each channel by itself, whose state is the inputs of the last taps but one."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from service.kernels.paging import STATE_BEFORE, ZERO_STATE, Paging

type LastInputs = Float[Array, "earlier slot channel"]  # oldest first; an axis before the last two is not padded


def convolve(
    inputs: Float[Array, "seq token channel"],
    taps: Float[Array, "channel tap"],
    states: LastInputs,
    paging: Paging,
) -> tuple[Float[Array, "seq token channel"], LastInputs]:
    """Convolve the tokens of each sequence with those before them; the returned slots hold the last known inputs.

    Args:
        inputs: the channels of each token; those of padding change no slot.
        taps: the weights; the last one is the token's own.
        states: the last inputs of each slot.
        paging: the sequences and their slots. A row that goes on where another one ended follows it, and that one is
            full.
    """
    assert paging.states is not None, "a model whose layers keep states is given their slots"
    reads, num_before, width = paging.states.reads, len(states), inputs.shape[1]
    before = jnp.swapaxes(states[:, jnp.maximum(reads, 0)], 0, 1)
    # Not multiplied by zero: a slot may hold NaN.
    before = jnp.where((reads == ZERO_STATE)[:, None, None], 0, before)
    if len(inputs) > 1 and width >= num_before:
        ends = jnp.roll(inputs[:, width - num_before :], 1, axis=0)
        before = jnp.where((reads == STATE_BEFORE)[:, None, None], ends, before)
    known = jnp.concatenate([before, inputs.astype(states.dtype)], axis=1)
    wide, weights = known.astype(jnp.float32), taps.astype(jnp.float32)
    summed = sum(wide[:, tap : tap + width] * weights[None, None, :, tap] for tap in range(num_before + 1))
    last = paging.num_known[:, None] + jnp.arange(num_before, dtype=jnp.int32)[None]
    kept = jnp.take_along_axis(known, last[:, :, None], axis=1)
    written = states.at[:, paging.states.writes].set(jnp.swapaxes(kept, 0, 1), mode="drop")
    return jnp.asarray(summed), written
