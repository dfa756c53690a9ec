"""Compile products with 8 and 4 bits for a machine that is not there, and print what XLA made of them.

Those of activations and weights, and those of attention over a cache in 8 bits.

A process of its own, in an environment that has the target's compiler:

    .tools/targets/tpu/bin/python -m tests.device_targets.compile_products v6e-1
"""

import functools
import json
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding
from jaxtyping import DTypeLike

from service.compile.aot import compiler_options, widens_octets
from service.device.chips import TARGETS
from service.device.mesh import DeviceMesh
from service.kernels.attention import AttentionKernel, Scoring
from service.kernels.cache_layout import CacheLayout
from service.kernels.gpu import TritonAttention
from service.kernels.paging import Paging
from service.kernels.products.linear import choose_products, linear
from service.kernels.products.quantized import FP4, FP8, GroupedWeight, QuantizedWeight, choose_fp8_products
from service.kernels.tpu_kv8 import Kv8Attention
from service.start.devices import use_target
from tests.device_targets.hlo import ARRAY, INSTRUCTION, count_kernels, num_elements

NUM_OUT, NUM_IN = 8192, 2048
NUM_TOKENS = (1, 64)  # of a decode step of one sequence, and of many
GROUP_SIZE = 128  # columns
DTYPES = {"int8": jnp.int8, "fp8": FP8}
ENTRY = re.compile(r"^ENTRY .*?^}", re.MULTILINE | re.DOTALL)


def main(target: str) -> None:
    """Compile, and print a line of JSON."""
    is_gpu = TARGETS[target].chip.platform == "gpu"
    device = use_target(target).devices[0]
    mesh = DeviceMesh((device,))
    products, fp8 = choose_products(mesh, np.dtype(jnp.bfloat16)), choose_fp8_products(mesh)
    report = {"fp8": fp8, "weight_elements": NUM_OUT * NUM_IN, "products": {}}
    product = jax.jit(functools.partial(linear, products=products, fp8=fp8))
    for name, dtype in DTYPES.items():
        for num_tokens in NUM_TOKENS:
            make = functools.partial(jax.ShapeDtypeStruct, sharding=SingleDeviceSharding(device))
            weight = QuantizedWeight(make((NUM_OUT, NUM_IN), dtype), make((NUM_OUT,), jnp.float32))
            traced = product.trace(make((num_tokens, NUM_IN), jnp.bfloat16), weight)
            options = compiler_options(device, widens_weights=widens_octets(traced.jaxpr.jaxpr))
            report["products"][f"{name}, {num_tokens}"] = facts_of(traced.lower().compile(options))
    for num_groups in (1, NUM_IN // GROUP_SIZE):
        for num_tokens in (*NUM_TOKENS, 512):
            make = functools.partial(jax.ShapeDtypeStruct, sharding=SingleDeviceSharding(device))
            of_groups = make((NUM_OUT, num_groups), jnp.bfloat16)
            weight = GroupedWeight(make((NUM_OUT, NUM_IN), jnp.int4), of_groups, of_groups)
            lowered = product.lower(make((num_tokens, NUM_IN), jnp.bfloat16), weight)
            compiled = lowered.compile(compiler_options(device, widens_weights=True))
            report["products"][f"int4 in {num_groups} groups, {num_tokens}"] = facts_of(compiled)
    if is_gpu:
        for num_tokens in NUM_TOKENS:
            make = functools.partial(jax.ShapeDtypeStruct, sharding=SingleDeviceSharding(device))
            weight = GroupedWeight(make((NUM_OUT, NUM_IN), FP4), make((NUM_OUT, NUM_IN // 16), jnp.bfloat16), None)
            compiled = product.lower(make((num_tokens, NUM_IN), jnp.bfloat16), weight).compile(compiler_options(device))
            report["products"][f"fp4, {num_tokens}"] = facts_of(compiled)
    kernels = {dtype: TritonAttention() if is_gpu else Kv8Attention(jnp.dtype(dtype).name) for dtype in (jnp.int8, FP8)}
    report["attention"] = {
        jnp.dtype(dtype).name: facts_of(compiled_attention(SingleDeviceSharding(device), kernel, dtype))
        for dtype, kernel in kernels.items()
    }
    sys.stdout.write(json.dumps(report) + "\n")


def compiled_attention(
    sharding: SingleDeviceSharding, kernel: AttentionKernel, dtype: DTypeLike
) -> jax.stages.Compiled:
    """A decode step's attention over pages of as many elements as the weights have, in place."""
    heads, group, dim, num_seqs = 8, 4, 128, 4
    page_size = 16 if isinstance(kernel, TritonAttention) else 128
    layout = CacheLayout(NUM_OUT * NUM_IN // (heads * dim * page_size), page_size)

    def made(shape: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape.shape, shape.dtype, sharding=sharding)

    initial = functools.partial(kernel.initial_cache, layout, num_kv_heads=heads, head_dim=dim, dtype=dtype)
    numbers = jax.ShapeDtypeStruct((num_seqs,), jnp.int32)
    paging = Paging(numbers, numbers, jax.ShapeDtypeStruct((num_seqs, 4096 // page_size), jnp.int32))
    new = jax.ShapeDtypeStruct((num_seqs, 1, heads, dim), jnp.bfloat16)
    query = jax.ShapeDtypeStruct((num_seqs, 1, heads, group, dim), jnp.bfloat16)
    attend = jax.jit(functools.partial(kernel.attend, scoring=Scoring(0.1)), donate_argnums=3)
    return attend.lower(*jax.tree.map(made, (query, new, new, jax.eval_shape(initial), paging))).compile()


def facts_of(compiled: jax.stages.Compiled) -> dict[str, object]:
    """The types of arrays as large as the weight that a program keeps in memory between its operations."""
    [entry] = ENTRY.findall(compiled.as_text())
    kept = {
        dtype
        for shape, operation in INSTRUCTION.findall(entry)
        if operation not in ("parameter", "bitcast")
        for dtype, sizes in ARRAY.findall(shape)
        if num_elements(sizes) >= NUM_OUT * NUM_IN
    }
    num_kernels = count_kernels(compiled.as_text())
    return {
        "kept": sorted(kept),
        "kernels": num_kernels,
        "temp_bytes": compiled.memory_analysis().temp_size_in_bytes,
        "entry": entry[-3000:],
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
