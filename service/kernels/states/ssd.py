"""The recurrence of Mamba-2 (SSD): a matrix for each head that each token decays, adds to, and reads.

With an input x of a head's token, already times its step, its decay e^g, and the vectors B and C of the head's group, a
head computes

    S <- e^g S + x B';   y = S C

Tokens of a row are computed together. With G the running sum of g, and L[i, j] = e^(G[i] - G[j]) for i >= j, else 0,

    Y = diag(e^G) C S' + (lower part of C B' * L) X;   S <- e^G[last] S + (diag(e^(G[last] - G)) X)' B

States and all that multiplies them are float32, and their products are not rounded to a narrower type.

Source: Dao & Gu 2024, arXiv:2405.21060, sections 6 and 7.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from service.kernels.paging import Paging
from service.kernels.states.recurrence import EXACT, Rule, last_known, run_recurrence

type States = Float[Array, "slot group head head_dim state_dim"]
type State = Float[Array, "group head head_dim state_dim"]


class Tokens(NamedTuple):
    """What the heads take of tokens, in float32. The heads of a group share B and C. Padding has only zeros."""

    inputs: Float[Array, "*seq token group head head_dim"]  # times the step of the token
    writes: Float[Array, "*seq token group state_dim"]  # B
    reads: Float[Array, "*seq token group state_dim"]  # C
    decays: Float[Array, "*seq token group head"]  # logarithms, not positive


class _Row(NamedTuple):
    """A row before its state is known."""

    among: Float[Array, "group head token head_dim"]  # what tokens read of each other
    reads: Float[Array, "group token state_dim"]
    grown: Float[Array, "group head token"]  # what is left of the state before the row at each token
    kept: Float[Array, "group head token head_dim"]  # inputs, times what is left of each at the end
    writes: Float[Array, "group token state_dim"]
    left: Float[Array, "group head"]  # of the state at the end


def run_ssd(
    tokens: Tokens, states: States, paging: Paging, *, is_in_turn: bool
) -> tuple[Float[Array, "seq token group head head_dim"], States]:
    """Return what the heads read at each token; the returned slots hold the states after the last known tokens.

    Args:
        tokens: one of each sequence, or those of each row of a prompt.
        states: the matrices of each slot.
        paging: the sequences and their slots.
        is_in_turn: as `run_recurrence` takes it.
    """
    rule = Rule(_step, _prepare, _advance, 1)
    return run_recurrence(rule, tokens, jnp.zeros_like(tokens.inputs), states, paging, is_in_turn=is_in_turn)


def _step(token: Tokens, state: State) -> tuple[Float[Array, "group head head_dim"], State]:
    """Return what one token reads, and the state after it."""
    added = token.inputs[0][..., None] * token.writes[0][:, None, None, :]
    changed = state * jnp.exp(token.decays[0])[..., None, None] + added
    return jnp.sum(changed * token.reads[0][:, None, None, :], axis=-1), changed


def _prepare(tokens: Tokens, num_known: Int[Array, ""] | None) -> _Row:
    """Return what of a row does not depend on the state before it."""
    last = last_known(num_known)
    inputs, decays = jnp.moveaxis(tokens.inputs, 0, 2), jnp.moveaxis(tokens.decays, 0, 2)
    writes, reads = jnp.moveaxis(tokens.writes, 0, 1), jnp.moveaxis(tokens.reads, 0, 1)
    token = jnp.arange(decays.shape[-1], dtype=jnp.int32)
    # Summed from each token on: a difference of two long sums has lost the digits of those between.
    is_after, is_before = ((token[:, None] > token[None])[None, None], (token[:, None] >= token[None])[None, None])
    since = jnp.cumsum(jnp.where(is_after, decays[..., :, None], 0), axis=-2)
    left = jnp.where(is_before, jnp.exp(since), 0)
    scores = jnp.einsum("gis,gjs->gij", reads, writes, precision=EXACT)[:, None] * left
    among = jnp.einsum("ghij,ghjp->ghip", scores, inputs, precision=EXACT)
    grown = jnp.exp(jnp.cumsum(decays, axis=-1))
    return _Row(among, reads, grown, left[..., last, :, None] * inputs, writes, grown[..., last])


def _advance(row: _Row, state: State) -> tuple[Float[Array, "token group head head_dim"], State]:
    """Return what the tokens of a row read, and the state after them."""
    of_state = jnp.einsum("gts,ghps->ghtp", row.reads, state, precision=EXACT)
    read = row.among + row.grown[..., None] * of_state
    written = jnp.einsum("ghtp,gts->ghps", row.kept, row.writes, precision=EXACT)
    return jnp.moveaxis(read, 2, 0), row.left[..., None, None] * state + written
