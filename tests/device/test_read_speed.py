"""What reading memory takes: the same for the same arrays, and more for more of them."""

import jax.numpy as jnp
import pytest

from service.device.native.library import NativeCode, native_code
from service.device.read_speed import measure_read_speed

pytestmark = pytest.mark.skipif(native_code() is NativeCode.NONE, reason="there is no native code")


def test_all_bytes_count_and_passes_follow_from_them():
    arrays = [jnp.ones((1000, 1000), jnp.float32), jnp.ones(7, jnp.int8), jnp.ones((0, 4), jnp.float32)]
    speed = measure_read_speed(arrays)
    assert speed.num_bytes == 4_000_007
    assert speed.bytes_per_s > 0
    assert speed.passes_per_s == pytest.approx(speed.bytes_per_s / 4_000_007)


def test_without_arrays_there_is_no_speed():
    assert measure_read_speed([]) is None


def test_of_many_bytes_only_some_are_read(monkeypatch):
    monkeypatch.setattr("service.device.read_speed.MOST_BYTES", 1000)
    read = []
    monkeypatch.setattr("service.device.read_speed.memory_reader", lambda: lambda _, size: read.append(size))
    speed = measure_read_speed([jnp.ones(200, jnp.float32), jnp.ones(300, jnp.float32), jnp.ones(5, jnp.float32)])
    assert speed.num_bytes == 2020
    assert sum(read) == 3 * 1000
