"""The speed of memory: from memory rather than from caches, of some of the bytes, of every dtype, on a CPU alone."""

import jax.numpy as jnp
import pytest

from service.device.native.library import MemoryCalls, NativeCode, native_code
from service.device.read_speed import ROUNDS, measure_read_speed

pytestmark = pytest.mark.skipif(native_code() is NativeCode.NONE, reason="there is no native code")


@pytest.fixture
def called(monkeypatch) -> list[tuple[str, int]]:
    """What is called for how many bytes, in place of reading them."""
    called = []
    calls = MemoryCalls(lambda _, size: called.append(("read", size)), lambda _, size: called.append(("flush", size)))
    monkeypatch.setattr("service.device.read_speed.memory_calls", lambda: calls)
    return called


def test_arrays_of_any_dtype_and_size_are_read():
    arrays = [jnp.ones((1000, 1000), jnp.float32), jnp.ones(7, jnp.int8), jnp.ones((0, 4), jnp.bfloat16)]
    assert measure_read_speed(arrays) > 0


def test_arrays_are_as_they_were():
    array = jnp.arange(3_000_001, dtype=jnp.int32)
    measure_read_speed([array])
    assert (array == jnp.arange(3_000_001, dtype=jnp.int32)).all()


def test_without_bytes_there_is_no_speed():
    assert measure_read_speed([]) is None
    assert measure_read_speed([jnp.ones((0, 4))]) is None


def test_of_many_bytes_only_some_are_read_and_caches_are_flushed_before(monkeypatch, called):
    monkeypatch.setattr("service.device.read_speed.MOST_BYTES", 1000)
    measure_read_speed([jnp.ones(200, jnp.float32), jnp.ones(300, jnp.float32), jnp.ones(5, jnp.float32)])
    of_round = [("flush", 800), ("flush", 200), ("read", 800), ("read", 200)]
    assert [call[0] for call in called] == [call[0] for call in of_round] * ROUNDS
    assert sorted(called) == sorted(of_round * ROUNDS)
