import jax
import jax.numpy as jnp
import numpy as np
import pytest

from service.engine.sampler import sample

VOCAB = 12
compiled_sample = jax.jit(sample)


def draw(logits, *, temperature=1.0, top_p=1.0, seeds=None, positions=None):
    logits = jnp.atleast_2d(jnp.asarray(logits, jnp.float32))
    num_rows = logits.shape[0]
    seeds = range(num_rows) if seeds is None else seeds
    return np.asarray(
        compiled_sample(
            logits,
            jnp.broadcast_to(jnp.asarray(temperature, jnp.float32), num_rows),
            jnp.broadcast_to(jnp.asarray(top_p, jnp.float32), num_rows),
            jnp.asarray([divmod(seed, 1 << 32) for seed in seeds], jnp.uint32),
            jnp.broadcast_to(jnp.asarray(0 if positions is None else positions, jnp.int32), num_rows),
        )
    )


@pytest.fixture(scope="module")
def logits():
    return np.random.RandomState(0).randn(VOCAB).astype(np.float32) * 1.5


def test_temperature_zero_takes_the_likeliest_even_beside_one_that_draws(logits):
    drawn = draw(np.tile(logits, (50, 1)), temperature=np.array([0.0, 1.5] * 25))
    assert set(drawn[::2]) == {int(np.argmax(logits))}
    assert len(set(drawn[1::2])) > 1


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_draws_follow_the_softmax(logits, temperature):
    num_draws = 20_000
    drawn = draw(np.tile(logits, (num_draws, 1)), temperature=temperature)
    frequencies = np.bincount(drawn, minlength=VOCAB) / num_draws
    scaled = np.exp(logits / temperature)
    probabilities = scaled / scaled.sum()
    # Five standard deviations of a binomial share.
    assert np.all(np.abs(frequencies - probabilities) < 5 * np.sqrt(probabilities / num_draws) + 1e-4)


@pytest.mark.parametrize("top_p", [0.01, 0.3, 0.7, 0.95])
def test_top_p_keeps_the_smallest_set_that_reaches_the_mass(logits, top_p):
    probabilities = np.exp(logits) / np.exp(logits).sum()
    order = np.argsort(-probabilities)
    num_kept = int(np.searchsorted(np.cumsum(probabilities[order]), top_p)) + 1
    drawn = draw(np.tile(logits, (5000, 1)), top_p=top_p)
    assert set(drawn.tolist()) <= set(order[:num_kept].tolist())
    assert set(drawn.tolist()) == set(order[:num_kept].tolist()) or probabilities[order[num_kept - 1]] < 0.005


def test_the_same_seed_and_position_draw_the_same_token_alone_or_in_a_crowd(logits):
    crowd = np.random.RandomState(1).randn(8, VOCAB).astype(np.float32)
    crowd[5] = logits
    for seed in (0, 7, 2**40 + 3, 2**63 - 1):
        alone = draw(logits, seeds=[seed], positions=9)[0]
        assert draw(crowd, seeds=[1, 2, 3, 4, 5, seed, 6, 7], positions=9)[5] == alone


def test_another_seed_or_position_draws_anew():
    flat = np.zeros((1, 4096), np.float32)
    by_seed = {int(draw(flat, seeds=[seed])[0]) for seed in range(20)}
    by_position = {int(draw(flat, seeds=[3], positions=position)[0]) for position in range(20)}
    high_halves = {int(draw(flat, seeds=[seed << 32])[0]) for seed in range(20)}
    assert min(len(by_seed), len(by_position), len(high_halves)) >= 18
