"""Recurrent layers over slots, whatever one token or one row computes: which state each begins with and where it ends.

Tokens of a row are computed together, and rows are as long as the unit of a prompt's chunks, so what a row gives does
not depend on how its prompt was cut.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from service.kernels.paging import STATE_BEFORE, ZERO_STATE, Paging, StateSlots

ROW = 64  # tokens that are computed together at most: running sums of more decays lose digits
EXACT = jax.lax.Precision.HIGHEST

type States = Float[Array, "slot ..."]
type State = Float[Array, "..."]
type Tokens = Any  # a tree of arrays [seq, token, ...], in float32; padding has zeros


class Rule(NamedTuple):
    """What a kind of layer computes. All is float32, and of one sequence."""

    step: Callable[[Tokens, State], tuple[Float[Array, "..."], State]]  # one token, [1, ...]
    # What of a row, [token, ...], does not depend on the state before it. The state after it is that after so many of
    # its first tokens; None: after all.
    prepare: Callable[[Tokens, Int[Array, ""] | None], Any]
    advance: Callable[[Any, State], tuple[Float[Array, "token ..."], State]]  # the rest of it
    multiple: int  # what the number of tokens of a row must be a multiple of


def run_recurrence(
    rule: Rule,
    tokens: Tokens,
    results: Float[Array, "seq token ..."],
    states: States,
    paging: Paging,
    *,
    is_in_turn: bool,
) -> tuple[Float[Array, "seq token ..."], States]:
    """Return what is read at each token; the returned slots hold the states after the last tokens that are known.

    Args:
        rule: what a layer computes.
        tokens: one of each sequence, or those of each row of a prompt.
        results: zeros in the shape of what is read.
        states: those of each slot.
        paging: the sequences and their slots.
        is_in_turn: whether sequences and rows are computed one after the other, as a CPU does it fastest. Then what one
            of them gives depends on no other, to the bit; otherwise products have other shapes with other numbers.
    """
    assert paging.states is not None, "a model whose layers keep states is given their slots"
    width = results.shape[1]
    tokens = _without_padding(tokens, paging.num_tokens, width)
    if width == 1:
        decode = _decode_in_turn if is_in_turn else _decode
        return decode(rule, tokens, results, states, paging)
    tokens, results, paging = _in_short_rows(tokens, results, paging, len(states))
    of_rows, states = _run_rows(rule, tokens, results, states, paging, is_in_turn=is_in_turn)
    of_rows = of_rows[:, : min(width, ROW)]
    return of_rows.reshape(-1, -(-width // ROW) * of_rows.shape[1], *of_rows.shape[2:])[:, :width], states


def _without_padding(tokens: Tokens, num_tokens: Int[Array, " seq"], width: int) -> Tokens:
    """Return the same with zeros in place of padding."""
    is_token = jnp.arange(width, dtype=jnp.int32)[None] < num_tokens[:, None]

    def masked(array: Array) -> Array:
        return jnp.where(is_token.reshape(*is_token.shape, *(1,) * (array.ndim - 2)), array, 0)

    return jax.tree.map(masked, tokens)


def _in_short_rows(
    tokens: Tokens, results: Float[Array, "seq token ..."], paging: Paging, no_slot: int
) -> tuple[Tokens, Float[Array, "row part_token ..."], Paging]:
    """Cut rows that are longer than they should be."""
    slots, (num_rows, width) = paging.states, results.shape[:2]
    assert slots is not None
    if width <= ROW:
        return tokens, results, paging
    parts = -(-width // ROW)

    def cut(array: Array) -> Array:
        padded = jnp.pad(array, ((0, 0), (0, parts * ROW - width), *((0, 0),) * (array.ndim - 2)))
        return padded.reshape(-1, ROW, *array.shape[2:])

    part = jnp.arange(parts, dtype=jnp.int32)[None]
    num_tokens = jnp.clip(paging.num_tokens[:, None] - part * ROW, 0, ROW)
    reads = jnp.where(part == 0, slots.reads[:, None], STATE_BEFORE)
    is_last = part == jnp.maximum(paging.num_tokens[:, None] - 1, 0) // ROW
    writes = jnp.where(is_last, slots.writes[:, None], no_slot)
    # Of a row with tokens that may be wrong there is one part: it is short.
    known = None if slots.known is None else jnp.clip(slots.known[:, None] - part * ROW, 0, ROW).reshape(-1)
    own = StateSlots(reads.reshape(-1), writes.reshape(-1), known)
    short = paging._replace(num_tokens=num_tokens.reshape(num_rows * parts), states=own)
    return jax.tree.map(cut, tokens), cut(results), short


def _begun(state: State, reads: Int[Array, ""]) -> State:
    """Return a state, or zeros in its place; not multiplied by zero, since a slot may hold NaN."""
    return jnp.where(reads == ZERO_STATE, jnp.zeros_like(state), state)


def _decode(
    rule: Rule, tokens: Tokens, results: Float[Array, "seq token ..."], states: States, paging: Paging
) -> tuple[Float[Array, "seq token ..."], States]:
    del results
    assert paging.states is not None
    before = jax.vmap(_begun)(states[jnp.maximum(paging.states.reads, 0)], paging.states.reads)
    read, after = jax.vmap(rule.step)(tokens, before)
    return read[:, None], states.at[paging.states.writes].set(after, mode="drop")


def _decode_in_turn(
    rule: Rule, tokens: Tokens, results: Float[Array, "seq token ..."], states: States, paging: Paging
) -> tuple[Float[Array, "seq token ..."], States]:
    slots, num_seqs = paging.states, len(paging.num_tokens)
    assert slots is not None
    is_live = paging.num_tokens > 0
    places = jnp.where(is_live, jnp.cumsum(is_live) - 1, num_seqs)
    order = jnp.zeros(num_seqs, jnp.int32).at[places].set(jnp.arange(num_seqs, dtype=jnp.int32), mode="drop")

    def run(number: Int[Array, ""], carry: tuple[States, Array]) -> tuple[States, Array]:
        states, results = carry
        seq = order[number]
        token = jax.tree.map(lambda array: jax.lax.dynamic_index_in_dim(array, seq, keepdims=False), tokens)
        before = _begun(_slot(states, slots.reads[seq]), slots.reads[seq])
        read, after = rule.step(token, before)
        changed = jax.lax.dynamic_update_index_in_dim(states, after, slots.writes[seq], 0)
        return changed, jax.lax.dynamic_update_index_in_dim(results, read, seq, 0)

    states, of_seqs = jax.lax.fori_loop(0, jnp.sum(is_live), run, (states, results[:, 0]))
    return of_seqs[:, None], states


def _run_rows(
    rule: Rule,
    tokens: Tokens,
    results: Float[Array, "row token ..."],
    states: States,
    paging: Paging,
    *,
    is_in_turn: bool,
) -> tuple[Float[Array, "row padded_token ..."], States]:
    """Run rows of at most ROW tokens, each of which begins with zeros, with a slot, or where the one before ended."""
    slots, padding = paging.states, -results.shape[1] % rule.multiple
    assert slots is not None
    tokens, results = jax.tree.map(
        lambda array: jnp.pad(array, ((0, 0), (0, padding), *((0, 0),) * (array.ndim - 2))), (tokens, results)
    )
    prepared = None if is_in_turn else jax.vmap(rule.prepare)(tokens, slots.known)

    def run(number: Int[Array, ""], carry: tuple[States, State, Array]) -> tuple[States, State, Array]:
        states, state, results = carry
        source = tokens if prepared is None else prepared
        own = jax.tree.map(lambda array: jax.lax.dynamic_index_in_dim(array, number, keepdims=False), source)
        row = rule.prepare(own, None if slots.known is None else slots.known[number]) if prepared is None else own
        reads, writes = slots.reads[number], slots.writes[number]
        before = jnp.where(reads == STATE_BEFORE, state, _begun(_slot(states, reads), reads))
        read, after = rule.advance(row, before)
        # What is not wanted is written where it changes nothing.
        place = jnp.minimum(writes, len(states) - 1)
        kept = jnp.where(writes < len(states), after, _slot(states, place))
        states = jax.lax.dynamic_update_index_in_dim(states, kept, place, 0)
        return states, after, jax.lax.dynamic_update_index_in_dim(results, read, number, 0)

    num_rows: Int[Array, ""] | int = len(paging.num_tokens)
    if is_in_turn:  # those behind the last one with tokens change nothing
        num_rows = jnp.max(jnp.where(paging.num_tokens > 0, jnp.arange(1, num_rows + 1), 0))
    states, _, results = jax.lax.fori_loop(0, num_rows, run, (states, jnp.zeros_like(states[0]), results))
    return results, states


def last_known(num_known: Int[Array, ""] | None) -> Int[Array, ""] | int:
    """Return the place in a row of the last token that is known, as `Rule.prepare` takes their number."""
    return -1 if num_known is None else jnp.maximum(num_known - 1, 0)


def _slot(states: States, slot: Int[Array, ""]) -> State:
    return jax.lax.dynamic_index_in_dim(states, jnp.maximum(slot, 0), keepdims=False)
