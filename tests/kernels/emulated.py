"""Kernels of accelerators as they can be run on a CPU: emulated, slow, and with the numbers that they would give."""

import functools
from unittest import mock

from jax._src import literals
from jax.experimental import pallas
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention

from service.kernels.gpu import TritonAttention
from service.kernels.tpu import RaggedAttention
from service.kernels.tpu_kv8 import Kv8Attention

# Emulation asks each index of a store for its shape, when it lowers; plain numbers have none in JAX 0.11.
literals.TypedInt.shape = ()


def ragged_on_cpu(*args, **options):
    """JAX's ragged paged attention, which offers no emulation itself; traced apart from the real one."""
    emulated = functools.partial(pallas.pallas_call, interpret=True)
    with mock.patch.object(pallas, "pallas_call", emulated):
        return ragged_paged_attention.__wrapped__(*args, **options)


TRITON = TritonAttention(interpret=True)
RAGGED = RaggedAttention(ragged_attention=ragged_on_cpu, interpret=True)
INT8, FP8, BFLOAT16 = (Kv8Attention(dtype, interpret=True) for dtype in ("int8", "float8_e4m3fn", "bfloat16"))
