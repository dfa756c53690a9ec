import jax
import jax.numpy as jnp
import numpy as np

from service.compile.aot import Program, compile_programs
from service.compile.counter import CompileCounter


def test_programs_compile_from_shapes_alone_and_run():
    vector = jax.ShapeDtypeStruct((3,), jnp.float32)
    told = []
    compiled = compile_programs(
        [Program("double", lambda x: x * 2, (vector,)), Program("sum", lambda x: x.sum(), (vector,))],
        num_threads=2,
        on_compiled=lambda name, seconds: told.append((name, seconds > 0)),
    )
    values = np.arange(3, dtype=np.float32)
    assert compiled["double"].executable(values).tolist() == [0, 2, 4]
    assert float(compiled["sum"].executable(values)) == 3
    assert sorted(told) == [("double", True), ("sum", True)]


def test_the_counter_sees_a_compilation_and_an_executable_causes_none():
    program = Program("triple", lambda x: x * 3, (jax.ShapeDtypeStruct((2,), jnp.float32),))
    counter = CompileCounter()
    executable = compile_programs([program], num_threads=1)["triple"].executable
    assert counter.num_compiles == 1
    assert counter.num_traces > 0
    before = (counter.num_compiles, counter.num_traces)
    executable(np.zeros(2, np.float32)).block_until_ready()
    assert (counter.num_compiles, counter.num_traces) == before
    counter.close()
