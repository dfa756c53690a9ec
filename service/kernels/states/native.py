"""One token of each sequence in C++, on a CPU: see `service/device/native/states.h`.

XLA on a CPU copies a state several times. This reads and writes each once, where it lies, on all threads.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

from service.device.native.library import (
    ADD_STATES_TARGET,
    CONVOLVE_STATES_TARGET,
    CORRECT_STATES_TARGET,
    register_native_calls,
)
from service.kernels.paging import Paging
from service.kernels.states import ssd
from service.kernels.states.convolution import LastInputs
from service.kernels.states.delta import States, Tokens


def native_delta(
    tokens: Tokens, states: States, paging: Paging
) -> tuple[Float[Array, "seq one key_head group value_dim"], States]:
    """Return what `run_delta` returns for one token of each sequence, whatever the batch; of padding zeros."""
    queries, keys, values, decays, shares = (array[:, 0] for array in tokens)
    operands = (*_slots(paging), queries, keys, values, jnp.exp(decays), shares)
    results = [jax.ShapeDtypeStruct(array.shape, jnp.float32) for array in (values, states)]
    register_native_calls()
    call = jax.ffi.ffi_call(CORRECT_STATES_TARGET, results, input_output_aliases={len(operands): 1})
    read, states = call(*operands, states)
    return read[:, None], states


def native_ssd(
    tokens: ssd.Tokens, states: ssd.States, paging: Paging
) -> tuple[Float[Array, "seq one group head head_dim"], ssd.States]:
    """Return what `run_ssd` returns for one token of each sequence, whatever the batch; of padding zeros."""
    inputs, writes, reads, decays = (array[:, 0] for array in tokens)
    operands = (*_slots(paging), inputs, writes, reads, jnp.exp(decays))
    results = [jax.ShapeDtypeStruct(array.shape, jnp.float32) for array in (inputs, states)]
    register_native_calls()
    call = jax.ffi.ffi_call(ADD_STATES_TARGET, results, input_output_aliases={len(operands): 1})
    read, states = call(*operands, states)
    return read[:, None], states


def native_convolve(
    inputs: Float32[Array, "seq one channel"],
    taps: Float[Array, "channel tap"],
    states: LastInputs,
    paging: Paging,
) -> tuple[Float32[Array, "seq one channel"], LastInputs]:
    """Return what `convolve` returns for one token of each sequence; of padding zeros."""
    operands = (*_slots(paging), inputs[:, 0], taps.astype(jnp.float32))
    results = [jax.ShapeDtypeStruct(array.shape, jnp.float32) for array in (inputs[:, 0], states)]
    register_native_calls()
    call = jax.ffi.ffi_call(CONVOLVE_STATES_TARGET, results, input_output_aliases={len(operands): 1})
    convolved, states = call(*operands, states)
    return convolved[:, None], states


def _slots(paging: Paging) -> tuple[Array, Array, Array]:
    assert paging.states is not None, "a model whose layers keep states is given their slots"
    return paging.states.reads, paging.states.writes, paging.num_tokens
