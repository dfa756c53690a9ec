"""Compile attention of decode steps for a GPU that is not there, and print what its compilers made of the kernels.

A process of its own, in an environment that has the target's compiler:

    .tools/targets/gpu/bin/python -m tests.device_targets.compile_attention h100
"""

import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from service.kernels.attention import Scoring
from service.kernels.cache_layout import CacheLayout
from service.kernels.gpu import TritonAttention
from service.kernels.paging import Paging
from service.start.devices import use_target

NUM_KV_HEADS, HEAD_DIM, PAGE_SIZE, CONTEXT = 8, 128, 16, 32_768
CASES = {
    "one": {"num_seqs": 1},
    "many": {"num_seqs": 64},
    "window, soft cap, sinks": {
        "num_seqs": 64,
        "options": {"sliding_window": 4096, "soft_cap": 30.0},
        "has_sinks": True,
    },
    "int8": {"num_seqs": 64, "cached": "int8"},
    "fp8": {"num_seqs": 64, "cached": "float8_e4m3fn"},
}
SPILLS = re.compile(r"(\d+) bytes spill stores")


def main(target: str) -> None:
    """Compile, and print a line of JSON."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XLA_FLAGS"] = f"--xla_dump_to={folder} --xla_dump_emitter_re=ptx"
        device = use_target(target).devices[0]
        report = {}
        for name, case in CASES.items():
            known = set(Path(folder).glob("*.ptx"))
            temp_bytes = compile_case(SingleDeviceSharding(device), **case)
            new = set(Path(folder).glob("*.ptx")) - known
            kernels = [facts_of(path, str(device.compute_capability)) for path in new]
            report[name] = {
                "temp_bytes": temp_bytes,
                "kernels": {kernel: facts for found in kernels for kernel, facts in found.items()},
            }
    sys.stdout.write(json.dumps(report) + "\n")


def compile_case(
    sharding: SingleDeviceSharding,
    *,
    num_seqs: int,
    cached: str = "bfloat16",
    options: dict[str, float] | None = None,
    has_sinks: bool = False,
) -> int:
    """Compile a decode step's attention, and return the bytes of its temporary arrays."""
    kernel, group = TritonAttention(), 4
    layout = CacheLayout(num_seqs * 1024 // PAGE_SIZE, PAGE_SIZE)
    initial = functools.partial(
        kernel.initial_cache, layout, num_kv_heads=NUM_KV_HEADS, head_dim=HEAD_DIM, dtype=jnp.dtype(cached)
    )
    numbers = jax.ShapeDtypeStruct((num_seqs,), jnp.int32)
    paging = Paging(numbers, numbers, jax.ShapeDtypeStruct((num_seqs, CONTEXT // PAGE_SIZE), jnp.int32))  # pyright: ignore[reportArgumentType]
    new = jax.ShapeDtypeStruct((num_seqs, 1, NUM_KV_HEADS, HEAD_DIM), jnp.bfloat16)
    query = jax.ShapeDtypeStruct((num_seqs, 1, NUM_KV_HEADS, group, HEAD_DIM), jnp.bfloat16)
    sinks = jax.ShapeDtypeStruct((NUM_KV_HEADS, group), jnp.bfloat16) if has_sinks else None
    attend = jax.jit(
        lambda *arrays: kernel.attend(*arrays[:-1], sinks=arrays[-1], scoring=Scoring(0.1, **(options or {}))),
        donate_argnums=3,
    )
    arguments = jax.tree.map(
        lambda of: jax.ShapeDtypeStruct(of.shape, of.dtype, sharding=sharding),
        (query, new, new, jax.eval_shape(initial), paging, sinks),
    )
    return attend.lower(*arguments).compile().memory_analysis().temp_size_in_bytes


def facts_of(ptx: Path, capability: str) -> dict[str, dict[str, int]]:
    """Return what is in a file of PTX: of each kernel, its copies to shared memory and what it spills."""
    [assembler] = Path(sys.prefix).glob("lib/python*/site-packages/nvidia/*/bin/ptxas")
    text = ptx.read_text()
    architecture = re.findall(r"^\.target (\w+)", text, re.MULTILINE)[0]
    assert architecture.startswith(f"sm_{capability.replace('.', '')}"), architecture
    command = [assembler, "-v", f"-arch={architecture}", ptx, "-o", os.devnull]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    found = {}
    for kernel in re.findall(r"\.visible \.entry (\w+)", text):
        of_kernel = said.partition(f"entry function '{kernel}'")[2]
        found[kernel] = {
            "spilled_bytes": int(SPILLS.findall(of_kernel)[0]),
            "async_copies": text.count("cp.async.commit_group"),
            "products": len(re.findall(r"\bmma\.sync|\bwgmma\.mma", text)),
        }
    return found


if __name__ == "__main__":
    main(*sys.argv[1:])
