"""Parallel ahead-of-time compilation of programs to executables."""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from service.compile.counter import planned_compilation
from service.compile.program import Executable, Program
from service.device.memory import Device, is_absent
from service.device.tunings import Tunings, kept_tunings

logger = logging.getLogger(__name__)

# Tracing and lowering a deep model recurses deeply, which would overflow a thread's default stack.
STACK_BYTES = 64 * 1024 * 1024
# LLVM's level 3 unrolls the loops that move keys and values. That takes a sixth to a third of the compile time of a
# prefill step and gains at most 1 % of its speed in float32 and 3 % in int8; decode steps are equally fast. Measured
# with four layers of a 135M model, and with the demo model.
CPU_OPTIONS: Mapping[str, Any] = {"xla_backend_optimization_level": 2}
# XLA rematerializes values in a program that takes more than 80 % of a GPU's memory, as a whole step with its weights
# and caches does by design. That adds a quarter more kernels to a decode step of an 8B model on an L4 and saves 272
# bytes (with top_k and top_p).
# Source: https://github.com/openxla/xla/blob/main/xla/service/gpu/gpu_hlo_schedule.cc (GetSchedulerMemoryLimit)
GPU_OPTIONS: Mapping[str, Any] = {"xla_disable_hlo_passes": "rematerialization"}
# Products of cuBLASLt, which chooses its kernels by rules as it runs. XLA's own kernels are chosen by timing them. For
# a GPU that is not there they get the smallest tiles, and beside weights there may be no memory to time them in.
UNTIMED_OPTIONS: Mapping[str, Any] = {**GPU_OPTIONS, "xla_gpu_enable_triton_gemm": False, "xla_gpu_autotune_level": 0}
# Products with weights in 8 and 4 bits read them as they are, and widen them inside; otherwise XLA would first write
# those in 4 bits widened.
WIDENING_OPTIONS: Mapping[str, Any] = {
    **GPU_OPTIONS,
    "xla_gpu_experimental_enable_subchannel_dequantisation_fusion": True,
}
# cuBLASLt has no such product and would be given a widened copy, so tiles are those of XLA's cost model (see
# `use_target`) or its default. Sums that are split would have no default.
UNTIMED_WIDENING_OPTIONS: Mapping[str, Any] = {
    **WIDENING_OPTIONS,
    "xla_gpu_experimental_force_split_k": 1,
    "xla_gpu_autotune_level": 0,
}
OPTIONS = {"cpu": CPU_OPTIONS, "gpu": GPU_OPTIONS}
QUICK_COMPILES = "jax_disable_most_optimizations"
OCTETS = (jnp.int8, jnp.float8_e4m3fn)
OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"


@dataclass(frozen=True)
class Compiled:
    """An executable and its compile time."""

    executable: Executable
    seconds: float


def compile_timed(program: Program) -> Compiled:
    """Compile a program on this thread, which needs a stack of `STACK_BYTES`."""
    # Source locations of operations are useless in a bundle and take 3 to 14 % of the time to load it.
    if jax.config.jax_traceback_in_locations_limit != 0:
        jax.config.update("jax_traceback_in_locations_limit", 0)
    begin_s = time.perf_counter()
    with planned_compilation():
        return Compiled(compile_program(program), time.perf_counter() - begin_s)


def compile_programs(programs: Sequence[Program], *, num_threads: int) -> Mapping[str, Compiled]:
    """Compile programs in parallel, and wait for all of them."""
    # The stack size applies to threads started from now on; the pool starts its threads within this block.
    previous = threading.stack_size(STACK_BYTES)
    try:
        with ThreadPoolExecutor(num_threads, thread_name_prefix="compile") as pool:
            results = list(pool.map(compile_timed, programs))
    finally:
        threading.stack_size(previous)
    return {program.name: result for program, result in zip(programs, results, strict=True)}


def compile_program(program: Program) -> Executable:
    """Trace a program, drop the leaves that it does not use, and compile it."""
    from jax.extend.core import jaxpr_as_fun  # a warm start does not need it

    traced = jax.jit(program.function).trace(program.constants, program.state, program.inputs)
    jaxpr = traced.jaxpr.jaxpr
    constants, state = jax.tree.leaves(program.constants), jax.tree.leaves(program.state)
    num_constants, num_state = len(constants), len(state)
    _, output_tree = jax.tree.structure(traced.out_info).children()
    state_in = jaxpr.invars[num_constants : num_constants + num_state]
    state_out = jaxpr.outvars[:num_state]
    used = {id(var) for eqn in jaxpr.eqns for var in eqn.invars} | {id(var) for var in jaxpr.outvars[num_state:]}
    constant_leaves = tuple(i for i in range(num_constants) if id(jaxpr.invars[i]) in used)
    state_leaves = tuple(i for i in range(num_state) if state_out[i] is not state_in[i])
    read_leaves = tuple(i for i in range(num_state) if state_out[i] is state_in[i] and id(state_in[i]) in used)

    def run(
        constants: list[jax.Array], read: list[jax.Array], changed: list[jax.Array], inputs: Any
    ) -> tuple[list[jax.Array], Any]:
        arguments: list[Any] = [None] * (num_constants + num_state)  # entries that stay None are unused
        for i, leaf in zip(constant_leaves, constants, strict=True):
            arguments[i] = leaf
        for i, leaf in zip((*read_leaves, *state_leaves), (*read, *changed), strict=True):
            arguments[num_constants + i] = leaf
        results = jaxpr_as_fun(traced.jaxpr)(*arguments, *jax.tree.leaves(inputs))
        return [results[i] for i in state_leaves], jax.tree.unflatten(output_tree, results[num_state:])

    run.__name__ = program.name.replace("-", "_")  # the name in profiles
    used_constants, read, changed = (
        [leaves[i] for i in indices]
        for leaves, indices in ((constants, constant_leaves), (state, read_leaves), (state, state_leaves))
    )
    state_shardings = [leaf.sharding for leaf in changed]
    jitted = jax.jit(
        run,
        donate_argnums=2,
        in_shardings=(
            *([leaf.sharding for leaf in part] for part in (used_constants, read, changed)),
            program.inputs_sharding,
        ),
        out_shardings=(state_shardings, program.outputs_sharding),
    )
    lowered = jitted.lower(used_constants, read, changed, program.inputs)
    compiled = _compile(lowered, program, widens_octets=widens_octets(jaxpr))
    return Executable(compiled, constant_leaves, read_leaves, state_leaves)


def widens_octets(jaxpr: Any) -> bool:
    """Return whether a program multiplies by an array that it widens from 8 bits."""
    from jax.extend.core import jaxprs_in_params

    widened: set[int] = set()
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "convert_element_type" and eqn.invars[0].aval.dtype in OCTETS:
            widened.add(id(eqn.outvars[0]))
        if eqn.primitive.name == "dot_general" and any(id(var) in widened for var in eqn.invars):
            return True
        if any(widens_octets(inner) for inner in jaxprs_in_params(eqn.params)):
            return True
    return False


def _compile(lowered: jax.stages.Lowered, program: Program, *, widens_octets: bool) -> jax.stages.Compiled:
    """Compile a program with the kernels that were timed before, if they are kept.

    If a GPU has no memory left to time kernels in, compile it with kernels that are not timed.
    """
    device = _device_of(program)
    widens_weights = widens_octets or any(leaf.dtype == jnp.int4 for leaf in jax.tree.leaves(lowered.in_avals))
    tunings = kept_tunings(device.device_kind) if device.platform == "gpu" else None
    if tunings is not None:
        try:
            return lowered.compile(tuned_options(device, tunings, widens_weights=widens_weights))
        except jax.errors.JaxRuntimeError as error:
            facts = {"executable": program.name, "file": str(tunings.path), "reason": str(error)[:200]}
            logger.info("the kept tunings do not suffice; compiling without them", extra=facts)
    try:
        return lowered.compile(compiler_options(device, widens_weights=widens_weights))
    except jax.errors.JaxRuntimeError as error:
        if device.platform != "gpu" or OUT_OF_MEMORY not in str(error):
            raise
        facts = {"executable": program.name, "reason": str(error)[:200]}
        logger.warning("no memory to time kernels in; compiling with untimed ones, which may be slower", extra=facts)
        return lowered.compile(dict(UNTIMED_WIDENING_OPTIONS if widens_weights else UNTIMED_OPTIONS))


def tuned_options(device: Device, tunings: Tunings, *, widens_weights: bool = False) -> dict[str, Any]:
    """Return the XLA options for programs of a GPU with tunings.

    What they lack is timed on the GPU. On another machine the compilation fails then: XLA would choose the tiles
    without timing them.
    """
    timed = WIDENING_OPTIONS if widens_weights else GPU_OPTIONS
    return {
        **timed,
        "xla_gpu_load_autotune_results_from": str(tunings.path),
        "xla_gpu_require_complete_aot_autotune_results": is_absent(device),
    }


def compiler_options(device: Device, *, widens_weights: bool = False) -> dict[str, Any]:
    """Return the XLA options for programs of a device, which may be on another machine.

    A CPU has none where JAX is set to compile quickly: they would undo that.

    Args:
        device: on which they will run.
        widens_weights: whether the program has weights in 4 bits, or multiplies by some in 8 that it widens.
    """
    if device.platform == "gpu" and widens_weights:
        return dict(UNTIMED_WIDENING_OPTIONS if is_absent(device) else WIDENING_OPTIONS)
    if device.platform == "gpu" and is_absent(device):
        return dict(UNTIMED_OPTIONS)
    if device.platform == "cpu" and jax.config.values[QUICK_COMPILES]:
        return {}
    return dict(OPTIONS.get(device.platform, {}))


def _device_of(program: Program) -> Device:
    if shardings := jax.tree.leaves(program.outputs_sharding):
        return next(iter(shardings[0].device_set))
    # The default device may be on another machine, and is then not in `jax.devices()`.
    return jax.config.jax_default_device or jax.devices()[0]  # pyright: ignore[reportAttributeAccessIssue]
