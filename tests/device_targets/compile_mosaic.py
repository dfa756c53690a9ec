"""Compile the core of an attention kernel by Mosaic GPU, the Pallas backend that outlasts Triton's, for an absent GPU.

A process of its own, in an environment that has the target's compiler:

    .tools/targets/gpu/bin/python -m tests.device_targets.compile_mosaic l4

The kernel loads pages of keys that a table names from global memory, multiplies queries by them on tensor cores in
registers, and takes the exponentials of a softmax: what paged attention needs that works before Hopper.
"""

import json
import sys

import jax
import jax.numpy as jnp
from jax.experimental.pallas import mosaic_gpu as mgpu
from jax.sharding import SingleDeviceSharding

from service.start.devices import use_target

ROWS, POSITIONS, HEAD_DIM, NUM_PAGES, PAGES_OF_SEQUENCE = 64, 64, 64, 16, 4
ACCUMULATOR = mgpu.Layout.MMA_ACC(jnp.float32)


def main(target: str) -> None:
    """Compile, and print a line of JSON."""
    on_device = SingleDeviceSharding(use_target(target).devices[0])
    inputs = (
        jax.ShapeDtypeStruct((ROWS, HEAD_DIM), jnp.bfloat16),
        jax.ShapeDtypeStruct((NUM_PAGES, POSITIONS, HEAD_DIM), jnp.bfloat16),
        jax.ShapeDtypeStruct((PAGES_OF_SEQUENCE,), jnp.int32),
    )
    report = {"compiled": True, "error": ""}
    try:
        jax.jit(scores, in_shardings=on_device, out_shardings=on_device).lower(*inputs).compile()
    except jax.errors.JaxRuntimeError as error:
        report = {"compiled": False, "error": str(error).partition("\n")[0]}
    sys.stdout.write(json.dumps(report) + "\n")


def scores(queries: jax.Array, pages: jax.Array, table: jax.Array) -> jax.Array:
    """Return the exponentials of the summed scores of pages, float32 [row, position]."""
    return mgpu.kernel(_kernel, out_type=jax.ShapeDtypeStruct((ROWS, POSITIONS), jnp.float32))(queries, pages, table)


def _kernel(query_ref, pages_ref, table_ref, out_ref) -> None:
    query = mgpu.load(query_ref, (), layout=mgpu.Layout.MMA_LHS(jnp.bfloat16), optimized=False)

    def add(index, sums):
        keys = pages_ref.at[table_ref[index]].T
        return mgpu.mma(sums, query, mgpu.load(keys, (), layout=mgpu.Layout.MMA_RHS(jnp.bfloat16), optimized=False))

    zeros = mgpu.layout_cast(jnp.zeros((ROWS, POSITIONS), jnp.float32), ACCUMULATOR)
    summed = jax.lax.fori_loop(0, PAGES_OF_SEQUENCE, add, zeros)
    highest = jax.lax.broadcast_in_dim(summed.max(axis=1), summed.shape, (0,))
    out_ref[...] = jnp.exp2(summed - highest)


if __name__ == "__main__":
    main(*sys.argv[1:])
