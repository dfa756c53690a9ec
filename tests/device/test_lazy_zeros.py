"""Zeros that occupy memory only from when they are written, on a CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest

from service.device.lazy_zeros import lazy_zeros

MEGABYTES = 2**20


def made(*shape, dtype="float32"):
    return jax.jit(lambda: lazy_zeros(shape, dtype))()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "int8", "float8_e4m3fn"])
@pytest.mark.parametrize("shape", [(1,), (3, 5), (1023,), (7, 4096), (1000, 1001)])
def test_memory_that_was_used_before_is_zero(shape, dtype):
    for _ in range(4):  # the same memory, as far as the allocator gives it again
        zeros = made(*shape, dtype=dtype)
        assert (zeros.shape, zeros.dtype) == (shape, jnp.dtype(dtype))
        assert not np.any(np.asarray(zeros.astype(jnp.float32)))
        jax.block_until_ready(jax.jit(lambda array: array + jnp.ones_like(array), donate_argnums=0)(zeros))


def test_no_memory_is_occupied_until_it_is_written_and_then_in_place():
    set_row = jax.jit(lambda array, row: array.at[row].set(1.0), donate_argnums=0)
    set_row(made(2048, 32 * 1024), 0)
    process = psutil.Process()
    before = process.memory_info().rss
    zeros = jax.block_until_ready(made(2048, 32 * 1024))
    assert zeros.nbytes == 256 * MEGABYTES
    assert process.memory_info().rss - before < 8 * MEGABYTES
    place = zeros.unsafe_buffer_pointer()
    written = jax.block_until_ready(set_row(zeros, 5))
    assert written.unsafe_buffer_pointer() == place
    assert process.memory_info().rss - before < 16 * MEGABYTES
    assert float(written.sum()) == 32 * 1024


def test_zeros_of_a_type_that_no_cache_has_are_an_error():
    with pytest.raises(Exception, match="lazy zeros are not of this type"):
        jax.block_until_ready(made(3, dtype="complex64"))
