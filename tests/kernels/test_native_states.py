"""States in C++: a token of each sequence changes its slot in place, as XLA's operations do elsewhere."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from service.device.native.library import NativeCode, native_code
from service.kernels.paging import ZERO_STATE, Paging, StateSlots
from service.kernels.states import ssd
from service.kernels.states.convolution import convolve
from service.kernels.states.delta import Tokens
from service.kernels.states.native import native_convolve, native_delta, native_ssd

pytestmark = pytest.mark.skipif(not native_code().has_products, reason="no native code for this processor")

NUM_SLOTS = 7
# Which slots sequences read and write: one begins, one leaves its slot to others, one is padding, one is not kept.
READS, WRITES, NUM_TOKENS = (ZERO_STATE, 1, 2, 4, 5), (0, 6, 7, 4, 7), (1, 1, 0, 1, 1)
SAME_RECURRENCE = 1e-5  # relative to the largest result
# Widths of every kind of loop: key heads, value heads of each, their dimensions.
SHAPES = [(2, 3, 32, 24), (1, 1, 128, 128), (3, 2, 8, 12), (2, 1, 5, 1), (1, 2, 96, 192), (2, 1, 64, 67)]
delta = jax.jit(native_delta, donate_argnums=1)
add = jax.jit(native_ssd, donate_argnums=1)
shift = jax.jit(native_convolve, donate_argnums=2)


def paging(order=(0, 1, 2, 3, 4)):
    slots = StateSlots(*(jnp.array([of_seq[i] for i in order], jnp.int32) for of_seq in (READS, WRITES)))
    counts = jnp.array([NUM_TOKENS[i] for i in order], jnp.int32)
    return Paging(jnp.zeros_like(counts), counts, jnp.zeros((len(counts), 1), jnp.int32), states=slots)


def draw(heads, group, key_dim, value_dim):
    random = np.random.RandomState(heads + value_dim)
    keys = random.randn(len(READS), 1, heads, key_dim)
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
    each = (len(READS), 1, heads, group)
    tokens = (
        random.randn(*keys.shape) / key_dim,
        *(keys, random.randn(*each, value_dim), random.uniform(-4, 0, each), random.uniform(0, 2, each)),
    )
    states = random.randn(NUM_SLOTS, heads, group, key_dim, value_dim)
    states[[0, 3]] = np.nan  # of what begins, and of what nobody reads
    return Tokens(*(jnp.asarray(array, jnp.float32) for array in tokens)), jnp.asarray(states, jnp.float32)


def expected(tokens, states):
    """Return what the sequences read, and the slots then, in float64."""
    after, results = np.array(states, np.float64), np.zeros(tokens.values[:, 0].shape)
    for seq in np.flatnonzero(is_token()):
        query, key, value, decay, share = (np.asarray(array[seq, 0], np.float64) for array in tokens)
        before = np.zeros_like(after[0]) if READS[seq] == ZERO_STATE else np.array(states[READS[seq]], np.float64)
        state = before * np.exp(decay)[..., None, None]
        correction = share[..., None] * (value - np.einsum("hgkv,hk->hgv", state, key))
        state += np.einsum("hk,hgv->hgkv", key, correction)
        results[seq] = np.einsum("hgkv,hk->hgv", state, query)
        if WRITES[seq] < NUM_SLOTS:
            after[WRITES[seq]] = state
    return results[:, None], after


def is_token():
    return np.array(NUM_TOKENS, bool)


@pytest.mark.parametrize("shape", SHAPES)
def test_heads_read_and_change_what_others_compute(shape):
    tokens, states = draw(*shape)
    wanted, after = expected(tokens, states)
    found, changed = delta(tokens, jnp.copy(states), paging())
    limits = {"atol": SAME_RECURRENCE * np.nanmax(np.abs(after)), "rtol": 0}
    np.testing.assert_allclose(found[is_token()], wanted[is_token()], **limits)
    assert not np.asarray(found)[~is_token()].any()
    np.testing.assert_allclose(changed, after, **limits)
    untouched = np.array([1, 2, 3, 5])  # the one that was left, that of padding, and those of nobody
    np.testing.assert_array_equal(np.asarray(changed)[untouched], np.asarray(states)[untouched])


@pytest.mark.parametrize(("groups", "heads", "head_dim", "state_dim"), [(1, 6, 24, 32), (2, 3, 5, 131), (3, 1, 64, 7)])
def test_heads_of_mamba_read_and_change_what_others_compute(groups, heads, head_dim, state_dim):
    random = np.random.RandomState(state_dim)
    each = (len(READS), 1, groups)
    arrays = (random.randn(*each, heads, head_dim), random.randn(*each, state_dim), random.randn(*each, state_dim))
    tokens = ssd.Tokens(*(jnp.asarray(a, jnp.float32) for a in (*arrays, random.uniform(-4, 0, (*each, heads)))))
    states = random.randn(NUM_SLOTS, groups, heads, head_dim, state_dim).astype(np.float32)
    states[[0, 3]] = np.nan
    wanted, after = np.zeros(tokens.inputs.shape), np.array(states, np.float64)
    for seq in np.flatnonzero(is_token()):
        inputs, writes, reads, decay = (np.asarray(array[seq, 0], np.float64) for array in tokens)
        before = 0 if READS[seq] == ZERO_STATE else np.exp(decay)[..., None, None] * states[READS[seq]]
        state = before + np.einsum("ghp,gn->ghpn", inputs, writes)
        wanted[seq, 0] = np.einsum("ghpn,gn->ghp", state, reads)
        if WRITES[seq] < NUM_SLOTS:
            after[WRITES[seq]] = state
    found, changed = add(tokens, jnp.asarray(states), paging())
    for one, other in ((found, wanted), (changed, after)):
        np.testing.assert_allclose(one, other, atol=SAME_RECURRENCE * np.nanmax(np.abs(other)), rtol=0)


@pytest.mark.parametrize(("num_channels", "width"), [(48, 4), (5000, 3), (7, 2), (33, 7), (8, 1)])
def test_convolutions_keep_their_last_inputs_as_others_do(num_channels, width):
    random = np.random.RandomState(width)
    inputs = jnp.asarray(random.randn(len(READS), 1, num_channels), jnp.float32)
    taps = jnp.asarray(random.randn(num_channels, width), jnp.float32)
    states = jnp.asarray(random.randn(width - 1, NUM_SLOTS, num_channels), jnp.float32)
    wanted, after = convolve(inputs, taps, states, paging())
    found, changed = shift(inputs, taps, jnp.copy(states), paging())
    np.testing.assert_allclose(found[is_token()], wanted[is_token()], atol=SAME_RECURRENCE, rtol=0)
    assert not np.asarray(found)[~is_token()].any()
    np.testing.assert_array_equal(changed, after)


def test_what_a_sequence_reads_depends_on_no_other_to_the_bit():
    tokens, states = draw(2, 3, 32, 24)
    together, changed = delta(tokens, jnp.copy(states), paging())
    for seq in np.flatnonzero(is_token()):
        alone, own = delta(Tokens(*(array[seq : seq + 1] for array in tokens)), jnp.copy(states), paging([seq]))
        np.testing.assert_array_equal(alone[0], together[seq])
        if WRITES[seq] < NUM_SLOTS:
            np.testing.assert_array_equal(own[WRITES[seq]], changed[WRITES[seq]])


def test_slots_are_changed_where_they_lie():
    tokens, states = draw(1, 1, 128, 128)
    compiled = delta.lower(tokens, states, paging()).compile()
    memory = compiled.memory_analysis()
    assert memory.alias_size_in_bytes == states.nbytes
    assert memory.temp_size_in_bytes < states.nbytes / 10


@pytest.mark.slow
@pytest.mark.skipif(native_code() in (NativeCode.AVX2, NativeCode.NEON), reason="these are the tests above")
def test_narrower_instructions_give_the_same():
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        __file__,
        "-k",
        "heads or convolutions",
    ]
    environment = {**os.environ, "XLA_FLAGS": "--xla_cpu_max_isa=AVX2", "PYTEST_ADDOPTS": "", "PYTEST_XDIST_WORKER": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "skipped" not in done.stdout
