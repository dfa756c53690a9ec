"""One token of each sequence on a TPU: a kernel that reads a state from one slot and writes it to another.

XLA on a TPU copies the states of a step out of their slots and back, one by one, and between its passes over them.
This reads and writes each once. Its grid goes through the sequences for some heads at a time, and the blocks that it
reads and writes are the slots that the step names.

A sequence without tokens has no slot to write, but a grid has a block of results for each of its steps. Such a step
takes the blocks of the sequence before it, or of the first that has some, and leaves them as they are: a block stays in
on-chip memory while the next step has the same.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from service.kernels.paging import ZERO_STATE, Paging
from service.kernels.states import ssd
from service.kernels.states.delta import States, Tokens
from service.kernels.states.recurrence import EXACT

MOST_BLOCK_BYTES = 2**20  # of the states of one step of the grid; there are four such blocks in on-chip memory
SUBLANES = 8
# What a step of the grid does: leave the block of the state after as it is, or fill it with that before it, which no
# sequence has; or compute a token from the state before, or from zeros.
LEAVES, KEEPS, GOES_ON, BEGINS = range(4)

type Slots = Float[Array, "slot head group row column"]


class _Rows(NamedTuple):
    """What a step takes of each head besides its state; each number is repeated as often as a vector that it meets."""

    pairs: Float[Array, "seq head two dim"]  # what is written and what is read by
    values: Float[Array, "seq head group result"]
    decays: Float[Array, "seq head group result"]
    state_decays: Float[Array, "seq head group column"]
    shares: Float[Array, "seq head group result"]
    alike: Float[Array, "seq head group result"]  # of the two of a pair


def tpu_delta(
    tokens: Tokens, states: States, paging: Paging, *, interpret: bool = False
) -> tuple[Float[Array, "seq one key_head group value_dim"], States]:
    """Return what `run_delta` returns for one token of each sequence; of padding zeros.

    Args:
        tokens: one of each sequence.
        states: the matrices of each slot.
        paging: the sequences and their slots.
        interpret: emulate the kernel without a TPU, for tests.
    """
    queries, keys, values, decays, shares = (array[:, 0] for array in tokens)
    pairs = jnp.stack([keys, queries], axis=2)
    decays, shares, alike = (
        jnp.broadcast_to(numbers[..., None], values.shape)
        for numbers in (jnp.exp(decays), shares, jnp.sum(keys * queries, axis=-1, keepdims=True))
    )
    rows = _Rows(pairs, values, decays, decays, shares, alike)
    read, states = _changed(rows, states, paging, corrects=True, interpret=interpret)
    return read[:, None], states


def tpu_ssd(
    tokens: ssd.Tokens, states: ssd.States, paging: Paging, *, interpret: bool = False
) -> tuple[Float[Array, "seq one group head head_dim"], ssd.States]:
    """Return what `run_ssd` returns for one token of each sequence; of padding zeros. The arguments are alike."""
    values, writes, reads, decays = (array[:, 0] for array in tokens)
    pairs, left = jnp.stack([writes, reads], axis=2), jnp.exp(decays)[..., None]
    alike = jnp.sum(writes * reads, axis=-1, keepdims=True)[..., None]
    wide = (*values.shape[:-1], states.shape[-1])
    of_results = (jnp.broadcast_to(numbers, values.shape) for numbers in (left, jnp.ones_like(left), alike))
    decays, shares, alike = of_results
    rows = _Rows(pairs, values, decays, jnp.broadcast_to(left, wide), shares, alike)
    read, states = _changed(rows, states, paging, corrects=False, interpret=interpret)
    return read[:, None], states


def _changed(
    rows: _Rows, states: Slots, paging: Paging, *, corrects: bool, interpret: bool
) -> tuple[Float[Array, "seq head group result"], Slots]:
    assert paging.states is not None, "a model whose layers keep states is given their slots"
    num_slots, num_heads, group, *matrix = states.shape
    heads, members = _block(num_heads, group, 4 * matrix[0] * matrix[1])
    is_live = (paging.num_tokens > 0) & (paging.states.writes < num_slots)
    sequence = jnp.arange(len(is_live), dtype=jnp.int32)
    # The last one with a slot up to each, else the first one.
    latest = jax.lax.cummax(jnp.where(is_live, sequence, -1))
    owner = jnp.where(latest < 0, jnp.argmax(is_live).astype(jnp.int32), latest)
    any_live = jnp.any(is_live)
    writes = jnp.where(any_live, paging.states.writes[owner], 0)
    reads = jnp.where(any_live, jnp.maximum(paging.states.reads[owner], 0), 0)
    begins = paging.states.reads == ZERO_STATE
    kinds = jnp.where(is_live, jnp.where(begins, BEGINS, GOES_ON), jnp.where(any_live, LEAVES, KEEPS))

    def of_sequence(width: int) -> pl.BlockSpec:
        return pl.BlockSpec((1, heads, members, width), lambda head, part, seq, *_: (seq, head, part, 0))

    def of_slot(which: int) -> pl.BlockSpec:
        return pl.BlockSpec(
            (1, heads, members, *matrix), lambda head, part, seq, *slots: (slots[which][seq], head, part, 0, 0)
        )

    of_pairs = pl.BlockSpec((1, heads, *rows.pairs.shape[2:]), lambda head, part, seq, *_: (seq, head, 0, 0))
    own = [of_pairs, *(of_sequence(array.shape[-1]) for array in rows[1:])]
    grid = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=3,
        grid=(num_heads // heads, group // members, len(sequence)),
        in_specs=[*own, of_slot(0)],
        out_specs=[of_sequence(rows.values.shape[-1]), of_slot(1)],
    )
    call = pl.pallas_call(
        functools.partial(_kernel, corrects=corrects),
        grid_spec=grid,
        out_shape=[
            jax.ShapeDtypeStruct(rows.values.shape, jnp.float32),
            jax.ShapeDtypeStruct(states.shape, states.dtype),
        ],
        input_output_aliases={3 + len(rows): 1},
        name="gated_delta" if corrects else "state_space",
        interpret=interpret,
    )
    slots = (array.astype(jnp.int32) for array in (reads, writes, kinds))
    read, states = call(*slots, *rows, states)
    return read, states


def _kernel(_reads: Any, _writes: Any, kinds: Any, *blocks: Any, corrects: bool) -> None:
    """Compute one token of some heads of a sequence.

    Args:
        kinds: what each step does with its blocks.
        blocks: those of `_Rows` and the state before, then what is read and the state after, in on-chip memory.
        corrects: whether heads write what they lack of a value, and not the value itself.
    """
    *given, before, read, after = blocks
    pairs, values, decays, state_decays, shares, alike = given
    kind = kinds[pl.program_id(2)]
    _, heads, members, *_ = before.shape

    @pl.when(kind < GOES_ON)
    def pad() -> None:
        read[...] = jnp.zeros_like(read)

    @pl.when(kind == KEEPS)
    def keep() -> None:
        after[...] = before[...]

    @pl.when(kind >= GOES_ON)
    def go_on() -> None:
        for head in range(heads):
            pair = pairs[0, head]
            for member in range(members):
                # Not multiplied by zero: a slot may hold NaN.
                state = jnp.where(kind == BEGINS, 0.0, before[0, head, member])
                value, decay, share, both, state_decay = (
                    array[0, head, pl.ds(member, 1)] for array in (values, decays, shares, alike, state_decays)
                )
                of_pair = _dot(pair, state, 1, 0 if corrects else 1) * decay
                added = share * (value - of_pair[:1]) if corrects else value
                read[0, head, pl.ds(member, 1)] = of_pair[1:] + both * added
                written = pair[:1]
                outer = _dot(written, added, 0, 0) if corrects else _dot(added, written, 0, 0)
                after[0, head, member] = state * state_decay + outer


def _dot(one: Array, other: Array, axis: int, other_axis: int) -> Array:
    contracted = (((axis,), (other_axis,)), ((), ()))
    return jax.lax.dot_general(one, other, contracted, precision=EXACT, preferred_element_type=jnp.float32)


def _block(num_heads: int, group: int, matrix_bytes: int) -> tuple[int, int]:
    """Return how many heads and how many of each one's group a block has, as many as its size permits."""
    most = max(1, MOST_BLOCK_BYTES // matrix_bytes)
    if group <= most:
        return max(
            count for count in range(1, num_heads + 1) if num_heads % count == 0 and count * group <= most
        ), group
    parts = [count for count in range(SUBLANES, group, SUBLANES) if group % count == 0 and count <= most]
    return 1, max(parts, default=group)
