"""The accelerators' kernels lower for their platforms without a device: no primitive or block shape is refused."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from service.kernels.attention import Scoring
from service.kernels.cache_layout import CacheLayout
from service.kernels.gpu import TritonAttention
from service.kernels.paging import Paging
from service.kernels.products.grouped import grouped_linear
from service.kernels.products.linear import Grouped, Products
from service.kernels.products.quantized import QuantizedWeight
from service.kernels.tpu import RaggedAttention
from service.kernels.tpu_kv8 import Kv8Attention

SHAPES = {
    "decode": {"num_seqs": 4, "width": 1},
    "decode alone, split context": {"num_seqs": 1, "width": 1, "num_pages": 64},
    "prefill": {"num_seqs": 1, "width": 256},
    "prefill of several, window, soft cap": {"num_seqs": 4, "width": 64, "sliding_window": 100, "soft_cap": 30.0},
    "many query heads": {"num_seqs": 2, "width": 16, "group": 16},
    "dimensions to pad": {"num_seqs": 2, "width": 16, "head_dim": 80},
    "heads to pad": {"num_seqs": 2, "width": 1, "num_kv_heads": 3, "group": 3},
    "float32": {"num_seqs": 2, "width": 16, "dtype": "float32"},
}

KERNELS = {
    "NVIDIA L4": (TritonAttention(), AbstractDevice("NVIDIA L4", None, platform="gpu"), "cuda", "__gpu$xla.gpu.triton"),
    "NVIDIA H100": (
        TritonAttention(),
        AbstractDevice("NVIDIA H100 80GB HBM3", None, platform="gpu"),
        "cuda",
        "__gpu$xla.gpu.triton",
    ),
    "TPU v5e": (RaggedAttention(), AbstractDevice("TPU v5 lite", 1, platform="tpu"), "tpu", "tpu_custom_call"),
    "TPU v6e": (RaggedAttention(), AbstractDevice("TPU v6 lite", 1, platform="tpu"), "tpu", "tpu_custom_call"),
}

SEVERAL = "prefill of several, window, soft cap"
# One of each platform in `make test`.
DEVICES = ["NVIDIA L4", "TPU v5e", *(pytest.param(d, marks=pytest.mark.grid) for d in ("NVIDIA H100", "TPU v6e"))]


# What is to come of Pallas on Triton stands in service/kernels/gpu.py.
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
@pytest.mark.parametrize("shape", [SEVERAL, *(pytest.param(s, marks=pytest.mark.grid) for s in SHAPES if s != SEVERAL)])
@pytest.mark.parametrize("device", DEVICES)
def test_a_kernel_lowers_for_its_device(device, shape):
    kernel, abstract_device, platform, target = KERNELS[device]
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=abstract_device)):
        lowered = lower(kernel, platform, **SHAPES[shape])
    assert target in lowered.as_text()


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
@pytest.mark.parametrize("num_rows", [8, pytest.param(4096, marks=pytest.mark.grid)])
@pytest.mark.parametrize(
    "kind", ["bfloat16", *(pytest.param(k, marks=pytest.mark.grid) for k in ("float32", "int8", "float8_e4m3fn"))]
)
@pytest.mark.parametrize("device", DEVICES)
def test_a_grouped_product_lowers_for_its_device(device: str, kind: str, num_rows: int):
    _, abstract_device, platform, target = KERNELS[device]
    products = Products(grouped=Grouped.GPU if platform == "cuda" else Grouped.TPU)
    is_wide = kind in ("bfloat16", "float32")
    values = jax.ShapeDtypeStruct((64, 2, 768, 2048), kind)
    weight = values if is_wide else QuantizedWeight(values, jax.ShapeDtypeStruct(values.shape[:-1], "float32"))
    x = jax.ShapeDtypeStruct((num_rows, 2048), kind if is_wide else "bfloat16")
    multiply = jax.jit(functools.partial(grouped_linear, products=products))
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=abstract_device)):
        traced = multiply.trace(x, weight, jax.ShapeDtypeStruct((64,), "int32"))
        lowered = traced.lower(lowering_platforms=(platform,)).as_text()
    # A TPU's kernel takes no 8-bit weights; those are multiplied one group at a time.
    assert (target in lowered) == (is_wide or platform == "cuda")


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
@pytest.mark.parametrize("kv_dtype", ["int8", pytest.param("float8_e4m3fn", marks=pytest.mark.grid)])
@pytest.mark.parametrize(
    "shape", [SEVERAL, *(pytest.param(s, marks=pytest.mark.grid) for s in ("decode", "heads to pad", "float32"))]
)
def test_a_tpu_reads_a_cache_in_8_bits(shape: str, kv_dtype: str):
    _, abstract_device, platform, target = KERNELS["TPU v5e"]
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=abstract_device)):
        lowered = lower(Kv8Attention(kv_dtype), platform, kv_dtype=kv_dtype, page_size=128, **SHAPES[shape])
    assert lowered.as_text().count(target) >= 3  # both writes, and attention


@pytest.mark.parametrize("head_dim", [pytest.param(256, marks=pytest.mark.grid), 512])
@pytest.mark.parametrize("kv_dtype", [pytest.param("int8", marks=pytest.mark.grid), "bfloat16"])
@pytest.mark.parametrize("width", [pytest.param(1, marks=pytest.mark.grid), 64])
def test_a_tpu_reads_wide_heads(width: int, kv_dtype: str, head_dim: int):
    _, abstract_device, platform, target = KERNELS["TPU v5e"]
    shape = {"num_seqs": 2, "width": width, "head_dim": head_dim, "num_kv_heads": 4, "group": 2, "soft_cap": 50.0}
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=abstract_device)):
        lowered = lower(Kv8Attention(kv_dtype), platform, kv_dtype=kv_dtype, page_size=128, **shape)
    assert lowered.as_text().count(target) >= 2  # a write, and attention


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
@pytest.mark.parametrize("kv_dtype", ["int8", pytest.param("float8_e4m3fn", marks=pytest.mark.grid)])
def test_a_gpu_reads_a_cache_in_8_bits(kv_dtype: str):
    kernel, abstract_device, platform, target = KERNELS["NVIDIA L4"]
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=abstract_device)):
        lowered = lower(kernel, platform, kv_dtype=kv_dtype, **SHAPES["decode alone, split context"])
    assert target in lowered.as_text()


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
@pytest.mark.parametrize("shape", [SEVERAL, pytest.param("many query heads", marks=pytest.mark.grid)])
@pytest.mark.parametrize("device", ["NVIDIA L4", pytest.param("NVIDIA H100", marks=pytest.mark.grid)])
def test_tokens_look_ahead_on_a_gpu(device: str, shape: str):
    kernel, abstract_device, platform, target = KERNELS[device]
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=abstract_device)):
        lowered = lower(kernel, platform, looks_ahead=True, head_dim=256, **SHAPES[shape])
    assert target in lowered.as_text()


@pytest.mark.grid
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
@pytest.mark.parametrize("width", [1, 64])
@pytest.mark.parametrize("device", ["NVIDIA L4", "NVIDIA H100"])
def test_a_gpu_reads_heads_of_512(device: str, width: int):
    kernel, abstract_device, platform, target = KERNELS[device]
    with use_abstract_mesh(AbstractMesh((), (), abstract_device=abstract_device)):
        lowered = lower(kernel, platform, head_dim=512, num_seqs=2, width=width, num_kv_heads=4, group=8)
    assert target in lowered.as_text()


def lower(
    kernel,
    platform,
    *,
    num_seqs,
    width,
    num_pages=16,
    head_dim=128,
    dtype="bfloat16",
    num_kv_heads=8,
    group=4,
    kv_dtype=None,
    page_size=16,
    looks_ahead=False,
    **options,
):
    layout = CacheLayout(4 * num_pages, page_size)
    cached = {"num_kv_heads": num_kv_heads, "head_dim": head_dim, "dtype": jnp.dtype(kv_dtype or dtype)}
    make = functools.partial(kernel.initial_cache, layout, **cached)
    attend = functools.partial(kernel.attend, scoring=Scoring(0.1, **options))
    numbers = jax.ShapeDtypeStruct((num_seqs,), jnp.int32)
    table = jax.ShapeDtypeStruct((num_seqs, num_pages), jnp.int32)
    new = jax.ShapeDtypeStruct((num_seqs, width, num_kv_heads, head_dim), dtype)
    query = jax.ShapeDtypeStruct((num_seqs, width, num_kv_heads, group, head_dim), dtype)
    ahead = jax.ShapeDtypeStruct((num_seqs, width), jnp.int32) if looks_ahead else None
    arguments = (query, new, new, jax.eval_shape(make), Paging(numbers, numbers, table, ahead))
    return jax.jit(attend).trace(*arguments).lower(lowering_platforms=(platform,))
