"""The copies of unloaded models' weights: which are kept, and what they are back on the device."""

import jax
import numpy as np
import pytest

from service.device.mesh import DeviceMesh
from service.models.weight_spec import TensorSource, WeightSpec
from service.weights.host_cache import HostCache

MESH = DeviceMesh((jax.devices()[0],))
SPECS = tuple(
    WeightSpec(name, ("mlp", "embed"), (4, 8), (TensorSource(name, (4, 8), (4, 8)),)) for name in ("first", "second")
)
MODEL_BYTES = sum(spec.num_bytes for spec in SPECS)


def weights_of(seed: int) -> dict[str, jax.Array]:
    random = np.random.default_rng(seed)
    return {spec.name: MESH.put(random.random(spec.shape, np.float32), spec.axes) for spec in SPECS}


def are_placed(cache: HostCache, key: str, seed: int) -> bool:
    """Return whether a model comes back, as it was."""
    placed = cache.place(key, SPECS, MESH)
    if placed is None:
        return False
    assert {name: array.sharding for name, array in placed.items()} == {
        name: array.sharding for name, array in weights_of(seed).items()
    }
    assert all(np.array_equal(array, placed[name]) for name, array in weights_of(seed).items())
    return True


@pytest.fixture
def cache() -> HostCache:
    """Return a cache of two models."""
    return HostCache(2 * MODEL_BYTES)


def test_an_unloaded_model_comes_back_as_it_was(cache: HostCache):
    cache.store("a", weights_of(1))
    cache.store("b", weights_of(2))
    assert cache.num_bytes == 2 * MODEL_BYTES
    assert are_placed(cache, "a", 1)
    assert are_placed(cache, "b", 2)
    assert not are_placed(cache, "c", 3)


def test_a_model_that_is_loaded_from_its_copy_is_not_copied_again(cache: HostCache):
    cache.store("a", weights_of(1))
    assert are_placed(cache, "a", 1)
    cache.store("a", weights_of(2))  # weights never change, so that other ones show whether they were copied
    assert are_placed(cache, "a", 1)
    assert cache.num_bytes == MODEL_BYTES


def test_the_copy_of_a_loaded_model_makes_room_first(cache: HostCache):
    cache.store("a", weights_of(1))
    cache.store("b", weights_of(2))
    assert are_placed(cache, "b", 2)  # on the device from here on, and used last
    cache.store("c", weights_of(3))
    assert not are_placed(cache, "b", 2)
    assert are_placed(cache, "a", 1)
    assert are_placed(cache, "c", 3)


def test_the_model_that_was_unloaded_first_makes_room_next(cache: HostCache):
    for seed, key in enumerate("abc", 1):
        cache.store(key, weights_of(seed))
    assert not are_placed(cache, "a", 1)
    assert cache.num_bytes == 2 * MODEL_BYTES
    cache.store("b", weights_of(2))  # again, so that it is the newer one
    cache.store("d", weights_of(4))
    assert are_placed(cache, "b", 2)
    assert not are_placed(cache, "c", 3)


def test_a_model_larger_than_the_bound_is_not_kept_and_costs_no_other_one(caplog: pytest.LogCaptureFixture):
    cache = HostCache(MODEL_BYTES)
    cache.store("a", weights_of(1))
    cache.store("large", {"first": MESH.put(np.zeros((16, 8), np.float32), ("mlp", "embed"))})
    assert "HOST_CACHE_BYTES" in caplog.text
    assert are_placed(cache, "a", 1)
    caplog.clear()
    HostCache(0).store("a", weights_of(1))
    assert not caplog.records
