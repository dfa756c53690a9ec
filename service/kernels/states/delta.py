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

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Int32

from service.kernels.paging import STATE_BEFORE, ZERO_STATE, Paging, StateSlots

ROW = 64  # tokens that are computed together at most: running sums of more decays lose digits
BLOCK = 16  # rows of the system that are substituted one by one
EXACT = jax.lax.Precision.HIGHEST

type States = Float[Array, "slot key_head group key_dim value_dim"]
type State = Float[Array, "key_head group key_dim value_dim"]


class Tokens(NamedTuple):
    """What the heads take of tokens, in float32. A group of value heads shares a key head. Padding has only zeros."""

    queries: Float[Array, "*seq token key_head key_dim"]  # scaled
    keys: Float[Array, "*seq token key_head key_dim"]  # of length one, or zero
    values: Float[Array, "*seq token key_head group value_dim"]
    decays: Float[Array, "*seq token key_head group"]  # logarithms, not positive
    shares: Float[Array, "*seq token key_head group"]  # of the corrections

    def without(self, num_tokens: Int[Array, " seq"]) -> "Tokens":
        """Return the same with zeros in place of padding."""
        is_token = jnp.arange(self.keys.shape[1], dtype=jnp.int32)[None] < num_tokens[:, None]

        def masked(array: Array) -> Array:
            return jnp.where(is_token.reshape(*is_token.shape, *(1,) * (array.ndim - 2)), array, 0)

        return Tokens(*map(masked, self))


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
    """Return what the heads read at each token; the returned slots hold the states after the last tokens.

    Args:
        tokens: one of each sequence, or those of each row of a prompt.
        states: the matrices of each slot.
        paging: the sequences and their slots.
        is_in_turn: whether sequences and rows are computed one after the other, as a CPU does it fastest. Then what one
            of them gives depends on no other, to the bit; otherwise products have other shapes with other numbers.
    """
    assert paging.states is not None, "a model whose layers keep states is given their slots"
    tokens = tokens.without(paging.num_tokens)
    if tokens.keys.shape[1] == 1:
        return (_decode_in_turn if is_in_turn else _decode)(tokens, states, paging)
    return _run_rows(*_in_short_rows(tokens, paging, len(states)), states, is_in_turn=is_in_turn)


def _in_short_rows(tokens: Tokens, paging: Paging, no_slot: int) -> tuple[Tokens, Paging, int]:
    """Cut rows that are longer than they should be, and return them with the width that they had."""
    slots, (num_rows, width) = paging.states, tokens.keys.shape[:2]
    assert slots is not None
    if width <= ROW:
        return tokens, paging, width
    parts = -(-width // ROW)
    short = Tokens(
        *(
            jnp.pad(a, ((0, 0), (0, parts * ROW - width), *((0, 0),) * (a.ndim - 2))).reshape(-1, ROW, *a.shape[2:])
            for a in tokens
        )
    )
    part = jnp.arange(parts, dtype=jnp.int32)[None]
    num_tokens = jnp.clip(paging.num_tokens[:, None] - part * ROW, 0, ROW)
    reads = jnp.where(part == 0, slots.reads[:, None], STATE_BEFORE)
    is_last = part == jnp.maximum(paging.num_tokens[:, None] - 1, 0) // ROW
    writes = jnp.where(is_last, slots.writes[:, None], no_slot)
    own = StateSlots(reads.reshape(-1), writes.reshape(-1))
    return short, paging._replace(num_tokens=num_tokens.reshape(num_rows * parts), states=own), width


def _begun(state: State, reads: Int[Array, ""]) -> State:
    """Return a state, or zeros in its place; not multiplied by zero, since a slot may hold NaN."""
    return jnp.where(reads == ZERO_STATE, jnp.zeros_like(state), state)


def _step(token: Tokens, state: State) -> tuple[Float[Array, "key_head group value_dim"], State]:
    """Return what one token reads, and the state after it, in one pass over the state."""
    query, key = token.queries[0], token.keys[0]
    decay = jnp.exp(token.decays[0])[:, :, None]
    of_key = jnp.sum(state * key[:, None, :, None], axis=2) * decay
    of_query = jnp.sum(state * query[:, None, :, None], axis=2) * decay
    correction = token.shares[0][:, :, None] * (token.values[0] - of_key)
    changed = state * decay[..., None] + key[:, None, :, None] * correction[:, :, None, :]
    return of_query + jnp.sum(key * query, axis=1)[:, None, None] * correction, changed


def _decode(
    tokens: Tokens, states: States, paging: Paging
) -> tuple[Float[Array, "seq token key_head group value_dim"], States]:
    assert paging.states is not None
    before = jax.vmap(_begun)(states[jnp.maximum(paging.states.reads, 0)], paging.states.reads)
    read, after = jax.vmap(_step)(tokens, before)
    return read[:, None], states.at[paging.states.writes].set(after, mode="drop")


def _decode_in_turn(
    tokens: Tokens, states: States, paging: Paging
) -> tuple[Float[Array, "seq token key_head group value_dim"], States]:
    slots, num_seqs = paging.states, len(paging.num_tokens)
    assert slots is not None
    is_live = paging.num_tokens > 0
    places = jnp.where(is_live, jnp.cumsum(is_live) - 1, num_seqs)
    order = jnp.zeros(num_seqs, jnp.int32).at[places].set(jnp.arange(num_seqs, dtype=jnp.int32), mode="drop")

    def run(number: Int[Array, ""], carry: tuple[States, Array]) -> tuple[States, Array]:
        states, results = carry
        seq = order[number]
        token = Tokens(*(jax.lax.dynamic_index_in_dim(array, seq, keepdims=False) for array in tokens))
        before = _begun(_slot(states, slots.reads[seq]), slots.reads[seq])
        read, after = _step(token, before)
        changed = jax.lax.dynamic_update_index_in_dim(states, after, slots.writes[seq], 0)
        return changed, jax.lax.dynamic_update_index_in_dim(results, read, seq, 0)

    results = jnp.zeros_like(tokens.values[:, 0])
    states, results = jax.lax.fori_loop(0, jnp.sum(is_live), run, (states, results))
    return results[:, None], states


def _run_rows(
    tokens: Tokens, paging: Paging, width: int, states: States, *, is_in_turn: bool
) -> tuple[Float[Array, "seq token key_head group value_dim"], States]:
    """Run rows of prompts, each of which begins with zeros, with a slot, or where the one before it has ended.

    Args:
        tokens: at most ROW in each row.
        paging: the slots that each row reads and writes.
        width: how many tokens a row had, of which it may be a part.
        states: the matrices of each slot.
        is_in_turn: as in `run_delta`.
    """
    slots, padding = paging.states, -tokens.keys.shape[1] % BLOCK
    assert slots is not None
    tokens = Tokens(*(jnp.pad(a, ((0, 0), (0, padding), *((0, 0),) * (a.ndim - 2))) for a in tokens))
    prepared = None if is_in_turn else jax.vmap(_prepare)(tokens)

    def run(number: Int[Array, ""], carry: tuple[States, State, Array]) -> tuple[States, State, Array]:
        states, state, results = carry
        source = tokens if prepared is None else prepared
        own = jax.tree.map(lambda array: jax.lax.dynamic_index_in_dim(array, number, keepdims=False), source)
        row = _prepare(own) if prepared is None else own
        reads, writes = slots.reads[number], slots.writes[number]
        before = jnp.where(reads == STATE_BEFORE, state, _begun(_slot(states, reads), reads))
        read, after = _advance(row, before)
        # What is not wanted is written where it changes nothing.
        place = jnp.minimum(writes, len(states) - 1)
        kept = jnp.where(writes < len(states), after, _slot(states, place))
        states = jax.lax.dynamic_update_index_in_dim(states, kept, place, 0)
        return states, after, jax.lax.dynamic_update_index_in_dim(results, read, number, 0)

    num_rows: Int[Array, ""] | int = len(paging.num_tokens)
    if is_in_turn:  # those behind the last one with tokens change nothing
        num_rows = jnp.max(jnp.where(paging.num_tokens > 0, jnp.arange(1, num_rows + 1), 0))
    results = jnp.zeros_like(tokens.values)
    states, _, results = jax.lax.fori_loop(0, num_rows, run, (states, jnp.zeros_like(states[0]), results))
    of_rows = results[:, : min(width, ROW)]
    return of_rows.reshape(-1, -(-width // ROW) * of_rows.shape[1], *of_rows.shape[2:])[:, :width], states


def _slot(states: States, slot: Int[Array, ""]) -> State:
    return jax.lax.dynamic_index_in_dim(states, jnp.maximum(slot, 0), keepdims=False)


def _prepare(tokens: Tokens) -> _Row:
    """Return what of a row does not depend on the state before it; the number of its tokens is a multiple of 16."""
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
        jnp.exp(total[..., -1:] - total)[..., None] * keys[:, None],
        grown[..., -1],
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
