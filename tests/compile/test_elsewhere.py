"""An executable of one device, loaded onto another."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from service.compile.aot import compile_programs
from service.compile.elsewhere import load_elsewhere
from service.compile.program import Program

pytestmark = pytest.mark.usefixtures("compiled_anew")


def test_it_computes_there_from_what_lies_there():
    shape = jax.ShapeDtypeStruct((3,), np.float32)
    program = Program("add", lambda weights, state, x: (state + x, weights * state), shape, shape, shape)
    executable = compile_programs([program], num_threads=1)["add"].executable
    here, there = jax.devices()[:2]
    moved = load_elsewhere(executable.serialize(), [here], [there])
    on_both = []
    for run, device in ((executable, here), (moved, there)):
        weights, state = (jax.device_put(jnp.arange(3.0) + i, SingleDeviceSharding(device)) for i in (1, 2))
        states = [state]
        outputs = run([weights], states, np.ones(3, np.float32))
        assert {outputs.devices().pop(), states[0].devices().pop()} == {device}
        on_both.append((np.asarray(outputs).tolist(), np.asarray(states[0]).tolist()))
    assert on_both[0] == on_both[1] == ([2.0, 6.0, 12.0], [3.0, 4.0, 5.0])
