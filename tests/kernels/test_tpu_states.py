"""The kernel for TPUs that changes states slot by slot, emulated: it gives what XLA gives, whatever the step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from service.kernels.paging import ZERO_STATE, Paging, StateSlots
from service.kernels.states import delta, ssd
from service.kernels.states.tpu import tpu_delta, tpu_ssd
from tests.tolerances import SAME_TOKENS_OTHER_STEPS_ATOL

NUM_SLOTS, NO_SLOT = 9, 9
# The tokens of each sequence, the slots that they read, and those that they write.
STEPS = {
    "full": ([1, 1, 1, 1], [0, ZERO_STATE, 3, 4], [0, 1, 2, 6]),
    "padding first, between and last": (
        [0, 1, 0, 1, 0],
        [ZERO_STATE, 7, 0, ZERO_STATE, 0],
        [NO_SLOT, 7, NO_SLOT, 2, NO_SLOT],
    ),
    "one": ([0, 0, 1], [0, 0, 3], [NO_SLOT, NO_SLOT, 8]),
    "none": ([0, 0], [ZERO_STATE, 0], [NO_SLOT, NO_SLOT]),
}


def paging_of(step):
    counts, reads, writes = (jnp.array(numbers, jnp.int32) for numbers in STEPS[step])
    return Paging(jnp.zeros_like(counts), counts, counts[:, None], states=StateSlots(reads, writes))


def drawn(random, *shape):
    return jnp.asarray(random.randn(*shape).astype(np.float32))


def check(step, states, expected, made):
    """Compare what is read of tokens, and all slots: those that nobody writes too."""
    is_live = np.array(STEPS[step][0]) > 0
    for array in made:
        assert array.dtype == jnp.float32
    np.testing.assert_allclose(made[0][is_live], expected[0][is_live], atol=SAME_TOKENS_OTHER_STEPS_ATOL, rtol=0)
    np.testing.assert_array_equal(np.asarray(made[0])[~is_live], 0)
    np.testing.assert_allclose(made[1], expected[1], atol=SAME_TOKENS_OTHER_STEPS_ATOL, rtol=0)
    others = sorted(set(range(NUM_SLOTS)) - set(STEPS[step][2]))
    np.testing.assert_array_equal(np.asarray(made[1])[others], np.asarray(states)[others])


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Make blocks of two heads with a group of two, or of half a group of sixteen."""
    monkeypatch.setattr("service.kernels.states.tpu.MOST_BLOCK_BYTES", 8 * 4 * 8 * 16)


def cases(*sizes):
    """Return steps with the heads, the group of each, and the two sizes of a state; emulating a kernel takes long."""
    usual = "padding first, between and last"
    others = [(step, each) for step in STEPS for each in sizes if (step, each) != (usual, sizes[0])]
    return [(usual, sizes[0]), *(pytest.param(*case, marks=pytest.mark.grid) for case in others)]


@pytest.mark.parametrize(("step", "sizes"), cases((8, 2, 8, 16), (3, 3, 8, 16)))
def test_the_gated_delta_rule(step, sizes):
    random, num_seqs, (heads, group, key_dim, value_dim) = np.random.RandomState(1), len(STEPS[step][0]), sizes
    keys = drawn(random, num_seqs, 1, heads, key_dim)
    tokens = delta.Tokens(
        drawn(random, num_seqs, 1, heads, key_dim) * key_dim**-0.5,
        keys / jnp.linalg.norm(keys, axis=-1, keepdims=True),
        drawn(random, num_seqs, 1, heads, group, value_dim),
        -jnp.abs(drawn(random, num_seqs, 1, heads, group)),
        2 * jax.nn.sigmoid(drawn(random, num_seqs, 1, heads, group)),
    )
    states, paging = drawn(random, NUM_SLOTS, *sizes).at[5].set(jnp.nan), paging_of(step)
    states = states.at[1].set(jnp.nan) if step == "full" else states  # where a sequence begins
    made = jax.jit(lambda *given: tpu_delta(*given, interpret=True))(tokens, states, paging)
    check(step, states, delta.run_delta(tokens, states, paging, is_in_turn=False), made)


@pytest.mark.parametrize(("step", "sizes"), cases((1, 16, 8, 16), (3, 3, 8, 16)))
def test_mamba_2(step, sizes):
    random, num_seqs, (groups, heads, head_dim, state_dim) = np.random.RandomState(2), len(STEPS[step][0]), sizes
    tokens = ssd.Tokens(
        drawn(random, num_seqs, 1, groups, heads, head_dim),
        drawn(random, num_seqs, 1, groups, state_dim),
        drawn(random, num_seqs, 1, groups, state_dim),
        -jnp.abs(drawn(random, num_seqs, 1, groups, heads)),
    )
    states, paging = drawn(random, NUM_SLOTS, *sizes), paging_of(step)
    made = jax.jit(lambda *given: tpu_ssd(*given, interpret=True))(tokens, states, paging)
    expected = ssd.run_ssd(tokens, states, paging, is_in_turn=False)
    scale = np.sqrt(state_dim)  # of sums of as many numbers of size one
    check(step, states, (expected[0] / scale, expected[1]), (made[0] / scale, made[1]))
