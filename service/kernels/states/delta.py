"""The gated delta rule: a matrix for each head that each token decays, corrects towards its value, and reads.

With a key k and a query q of a token, its value v, its decay e^g and the share b of the correction, a head computes

    S <- e^g S;   d = b (v - S'k);   S <- S + k d';   o = S'q

Tokens of a row are computed together. With G the running sum of g, and L[i, j] = e^(G[i] - G[j]) for i >= j, else 0,

    A = strictly lower part of diag(b) K K' * L
    (I + A) [U | W] = [diag(b) V | diag(b e^G) K]
    D = U - W S;   O = diag(e^G) Q S + (lower part of Q K' * L) D;   S <- e^G[last] S + (diag(e^(G[last] - G)) K)' D

The system is solved by forward substitution, within blocks of 16 and from block to block: where keys are alike, the
powers of A that a product form needs grow until float32 holds no digit of the result. States and all that multiplies
them are float32, and their products are not rounded to a narrower type.

Source: Yang et al. 2024, arXiv:2412.06464 (Gated DeltaNet); Yang et al. 2024, arXiv:2406.06484, section 3 (rows).
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Int32

from service.kernels.paging import Paging
from service.kernels.states.recurrence import EXACT, Rule, last_known, run_recurrence

BLOCK = 16  # rows of the system that are substituted one by one

type States = Float[Array, "slot key_head group key_dim value_dim"]
type State = Float[Array, "key_head group key_dim value_dim"]


class Tokens(NamedTuple):
    """What the heads take of tokens, in float32. A group of value heads shares a key head. Padding has only zeros."""

    queries: Float[Array, "*seq token key_head key_dim"]  # scaled
    keys: Float[Array, "*seq token key_head key_dim"]  # of length one, or zero
    values: Float[Array, "*seq token key_head group value_dim"]
    decays: Float[Array, "*seq token key_head group"]  # logarithms, not positive
    shares: Float[Array, "*seq token key_head group"]  # of the corrections


class _Row(NamedTuple):
    """A row before its state is known."""

    corrected: Float[Array, "key_head group token value_dim"]  # U
    removed: Float[Array, "key_head group token key_dim"]  # W
    scores: Float[Array, "key_head group token token"]  # of queries and the corrections of tokens before
    read: Float[Array, "key_head group token key_dim"]  # queries, times what is left of the state
    written: Float[Array, "key_head group token key_dim"]  # keys, times what is left of each at the end
    left: Float[Array, "key_head group"]  # of the state at the end


def run_delta(
    tokens: Tokens, states: States, paging: Paging, *, is_in_turn: bool
) -> tuple[Float[Array, "seq token key_head group value_dim"], States]:
    """Return what the heads read at each token; the returned slots hold the states after the last known tokens.

    Args:
        tokens: one of each sequence, or those of each row of a prompt.
        states: the matrices of each slot.
        paging: the sequences and their slots.
        is_in_turn: whether sequences and rows are computed one after the other, as a CPU does it fastest. Then what one
            of them gives depends on no other, to the bit; otherwise products have other shapes with other numbers.
    """
    rule = Rule(_step, _prepare, _advance, BLOCK)
    return run_recurrence(rule, tokens, jnp.zeros_like(tokens.values), states, paging, is_in_turn=is_in_turn)


def _step(token: Tokens, state: State) -> tuple[Float[Array, "key_head group value_dim"], State]:
    """Return what one token reads, and the state after it, in one pass over the state."""
    query, key = token.queries[0], token.keys[0]
    decay = jnp.exp(token.decays[0])[:, :, None]
    of_key = jnp.sum(state * key[:, None, :, None], axis=2) * decay
    of_query = jnp.sum(state * query[:, None, :, None], axis=2) * decay
    correction = token.shares[0][:, :, None] * (token.values[0] - of_key)
    changed = state * decay[..., None] + key[:, None, :, None] * correction[:, :, None, :]
    return of_query + jnp.sum(key * query, axis=1)[:, None, None] * correction, changed


def _prepare(tokens: Tokens, num_known: Int[Array, ""] | None) -> _Row:
    """Return what of a row does not depend on the state before it; the number of its tokens is a multiple of 16."""
    last = last_known(num_known)
    by_head = [jnp.moveaxis(array, 0, axis) for array, axis in zip(tokens, (1, 1, 2, 2, 2), strict=True)]
    queries, keys, values, decays, shares = by_head
    num_tokens = keys.shape[1]
    total = jnp.cumsum(decays, axis=-1)
    token = jnp.arange(num_tokens, dtype=jnp.int32)
    is_before = token[:, None] >= token[None]
    # Masked before it is exponentiated: above the diagonal it overflows.
    left = jnp.exp(jnp.where(is_before[None, None], total[..., :, None] - total[..., None, :], -jnp.inf))
    alike = jnp.einsum("hik,hjk->hij", keys, keys, precision=EXACT)[:, None]
    is_strictly = (token[:, None] > token[None])[None, None]
    system = jnp.where(is_strictly, shares[..., None] * alike * left, 0)
    grown = jnp.exp(total)
    wanted = jnp.concatenate(
        [shares[..., None] * values, (shares * grown)[..., None] * keys[:, None]],
        axis=-1,
    )
    solved = _solve(system, wanted)
    of_queries = jnp.einsum("hik,hjk->hij", queries, keys, precision=EXACT)[:, None]
    return _Row(
        solved[..., : values.shape[-1]],
        solved[..., values.shape[-1] :],
        of_queries * left,
        grown[..., None] * queries[:, None],
        left[..., last, :, None] * keys[:, None],
        grown[..., last],
    )


def _advance(row: _Row, state: State) -> tuple[Float[Array, "token key_head group value_dim"], State]:
    """Return what the tokens of a row read, and the state after them."""
    corrections = row.corrected - jnp.einsum("hgtk,hgkv->hgtv", row.removed, state, precision=EXACT)
    read = jnp.einsum("hgtk,hgkv->hgtv", row.read, state, precision=EXACT)
    read = read + jnp.einsum("hgij,hgjv->hgiv", row.scores, corrections, precision=EXACT)
    written = jnp.einsum("hgtk,hgtv->hgkv", row.written, corrections, precision=EXACT)
    return jnp.moveaxis(read, 2, 0), row.left[..., None, None] * state + written


def _solve(
    system: Float[Array, "key_head group token token"], wanted: Float[Array, "key_head group token column"]
) -> Float[Array, "key_head group token column"]:
    """Return X of (I + system) X = wanted, of a system that is strictly lower triangular."""
    num_blocks = system.shape[-1] // BLOCK
    blocks = system.reshape(*system.shape[:2], num_blocks, BLOCK, num_blocks, BLOCK)
    number: Int32[Array, " block"] = jnp.arange(num_blocks, dtype=jnp.int32)
    diagonal = jnp.moveaxis(blocks[:, :, number, :, number], 0, 2)  # [key_head, group, block, row, column]
    identity = jnp.eye(BLOCK, dtype=system.dtype)
    inverse = jnp.broadcast_to(identity, diagonal.shape)
    for row in range(1, BLOCK):
        known = jnp.sum(diagonal[..., row, :row, None] * inverse[..., :row, :], axis=-2)
        inverse = inverse.at[..., row, :].set(identity[row][None, None, None] - known)
    solved: list[Array] = []
    for block in range(num_blocks):
        own = wanted[:, :, block * BLOCK : (block + 1) * BLOCK]
        for other, known in enumerate(solved):
            own = own - jnp.einsum("hgij,hgjc->hgic", blocks[:, :, block, :, other], known, precision=EXACT)
        solved.append(jnp.einsum("hgij,hgjc->hgic", inverse[:, :, block], own, precision=EXACT))
    return jnp.concatenate(solved, axis=2)
