import functools
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from service.compile.aot import (
    CPU_OPTIONS,
    GPU_OPTIONS,
    QUICK_COMPILES,
    UNTIMED_OPTIONS,
    UNTIMED_WIDENING_OPTIONS,
    WIDENING_OPTIONS,
    compile_programs,
    compiler_options,
    tuned_options,
    widens_octets,
)
from service.compile.counter import CompileCounter
from service.compile.program import Program
from service.device.tunings import Tunings
from service.device.widened_tokens import WidenedTokens
from service.kernels.products.linear import Products, linear
from service.kernels.products.quantized import Fp8Products, QuantizedWeight
from tests.device.devices import NamedDevice

pytestmark = pytest.mark.usefixtures("compiled_anew")


@pytest.fixture
def compiles_quickly():
    before = jax.config.values[QUICK_COMPILES]
    yield lambda is_quick: jax.config.update(QUICK_COMPILES, is_quick)
    jax.config.update(QUICK_COMPILES, before)


def program(name, function, inputs):
    return Program(name, lambda constants, state, x: (state, function(x)), inputs=inputs)


def test_programs_compile_from_shapes_alone_and_run():
    vector = jax.ShapeDtypeStruct((3,), jnp.float32)
    compiled = compile_programs(
        [program("double", lambda x: x * 2, vector), program("sum", lambda x: x.sum(), vector)],
        num_threads=2,
    )
    values = np.arange(3, dtype=np.float32)
    assert compiled["double"].executable((), [], values).tolist() == [0, 2, 4]
    assert float(compiled["sum"].executable((), [], values)) == 3
    assert all(program.seconds > 0 for program in compiled.values())


@pytest.mark.parametrize(("platform", "options"), [("cpu", CPU_OPTIONS), ("gpu", GPU_OPTIONS), ("tpu", {})])
def test_the_options_are_those_of_the_platform_that_is_compiled_for(platform, options, compiles_quickly):
    compiles_quickly(False)
    assert compiler_options(NamedDevice(0, platform)) == options


@pytest.mark.parametrize(("platform", "options"), [("cpu", {}), ("gpu", GPU_OPTIONS)])
def test_a_cpu_has_no_options_where_jax_is_told_to_compile_quickly(platform, options, compiles_quickly):
    compiles_quickly(True)
    assert compiler_options(NamedDevice(0, platform)) == options


def test_products_for_a_gpu_on_another_machine_are_not_left_to_kernels_that_want_timing():
    elsewhere = SimpleNamespace(platform="gpu", client=SimpleNamespace(local_devices=list))
    assert compiler_options(elsewhere) == UNTIMED_OPTIONS


def test_products_of_4_bits_are_widened_inside_the_product_wherever_the_gpu_is():
    elsewhere = SimpleNamespace(platform="gpu", client=SimpleNamespace(local_devices=list))
    assert compiler_options(NamedDevice(0, "gpu"), widens_weights=True) == WIDENING_OPTIONS
    assert compiler_options(elsewhere, widens_weights=True) == UNTIMED_WIDENING_OPTIONS
    assert compiler_options(NamedDevice(0, "tpu"), widens_weights=True) == {}


@pytest.mark.parametrize("num_tokens", [1, 64])
@pytest.mark.parametrize("dtype", [jnp.int8, jnp.float8_e4m3fn])
def test_a_product_of_few_tokens_is_known_to_widen_its_weight_and_one_of_quantized_tokens_is_not(dtype, num_tokens):
    x = jax.ShapeDtypeStruct((num_tokens, 8), jnp.bfloat16)
    weight = QuantizedWeight(jax.ShapeDtypeStruct((16, 8), dtype), jax.ShapeDtypeStruct((16,), jnp.float32))
    for most, widens in ((64, True), (0, False)):
        product = functools.partial(
            linear, products=Products(widened_tokens=WidenedTokens(most, most)), fp8=Fp8Products.NATIVE
        )
        assert widens_octets(jax.jit(jax.jit(product)).trace(x, weight).jaxpr.jaxpr) is widens


@pytest.mark.parametrize("widens_weights", [False, True])
def test_kept_tunings_reach_xla_and_suffice_where_it_cannot_time_kernels(widens_weights, tmp_path):
    tunings = Tunings(tmp_path / "NVIDIA-L4.textproto", "0" * 64)
    elsewhere = SimpleNamespace(platform="gpu", client=SimpleNamespace(local_devices=list))
    options = WIDENING_OPTIONS if widens_weights else GPU_OPTIONS
    for device, is_absent in ((NamedDevice(0, "gpu"), False), (elsewhere, True)):
        assert tuned_options(device, tunings, widens_weights=widens_weights) == {
            **options,
            "xla_gpu_load_autotune_results_from": str(tunings.path),
            "xla_gpu_require_complete_aot_autotune_results": is_absent,
        }


def test_the_counter_sees_a_compilation_and_an_executable_causes_none():
    triple = program("triple", lambda x: x * 3, jax.ShapeDtypeStruct((2,), jnp.float32))
    counter = CompileCounter()
    executable = compile_programs([triple], num_threads=1)["triple"].executable
    assert counter.num_compiles == 1
    assert counter.num_traces > 0
    before = (counter.num_compiles, counter.num_traces)
    executable((), [], np.zeros(2, np.float32)).block_until_ready()
    assert (counter.num_compiles, counter.num_traces) == before
    counter.close()


def test_an_executable_takes_and_replaces_only_the_leaves_that_it_touches():
    vector = jax.ShapeDtypeStruct((2,), jnp.float32)

    def step(constants, state, x):
        return state | {"sum": state["sum"] + x * constants["factor"]}, state["seen"] + 1

    touching = Program(
        "step", step, {"factor": vector, "other": vector}, dict.fromkeys(("idle", "seen", "sum"), vector), vector
    )
    executable = compile_programs([touching], num_threads=1)["step"].executable
    assert executable.constant_leaves == (0,)
    assert executable.read_leaves == (1,)
    assert executable.state_leaves == (2,)
    constants = [jnp.full(2, 3.0, jnp.float32), jnp.zeros(0)]
    idle = jnp.zeros(0)
    state = [idle, jnp.full(2, 5.0, jnp.float32), jnp.full(2, 7.0, jnp.float32)]
    outputs = executable(constants, state, jnp.full(2, 2.0, jnp.float32))
    assert outputs.tolist() == [6, 6]
    assert state[0] is idle
    assert [leaf.tolist() for leaf in state[1:]] == [[5, 5], [13, 13]]
