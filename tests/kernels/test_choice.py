"""A device gets its own kernel wherever that can serve the model, and the reason is told where it cannot."""

from types import SimpleNamespace

import numpy as np
import pytest

from service.kernels.attention import AttentionKernel
from service.kernels.cache_layout import CacheLayout
from service.kernels.choice import HeadShape, KernelName, choose_kernel
from service.kernels.gpu import TritonAttention
from service.kernels.native_pages import NativePagedAttention
from service.kernels.reference import PagedReference
from service.kernels.tpu import RaggedAttention
from service.kernels.tpu_kv8 import Kv8Attention

BFLOAT16 = np.dtype("bfloat16")
LAYOUT = CacheLayout(num_pages=4, page_size=16)


def device(platform, kind="any", **attributes):
    return SimpleNamespace(
        platform=platform, device_kind=kind, client=None, memory_stats=lambda: None, id=0, **attributes
    )


CPU = device("cpu")
L4 = device("gpu", "NVIDIA L4", compute_capability="8.9")
T4 = device("gpu", "Tesla T4", compute_capability="7.5")
H100 = device("gpu", "NVIDIA H100 80GB HBM3", compute_capability="9.0")
MI300 = device("gpu", "AMD Instinct MI300X", compute_capability="gfx942")
V5E = device("tpu", "TPU v5 lite")


@pytest.mark.parametrize(
    ("on", "kernel"),
    [(CPU, NativePagedAttention), (L4, TritonAttention), (H100, TritonAttention), (V5E, RaggedAttention)],
)
def test_each_platform_has_its_kernel(on, kernel):
    choice = choose_kernel(on, HeadShape(num_kv_heads=8, head_dim=128, dtype=BFLOAT16))
    assert choice.obstacle is None
    assert choice.cached_head_dim == 128
    made = choice.kernel()
    assert type(made) is kernel
    assert isinstance(made, AttentionKernel)


@pytest.mark.parametrize(
    ("on", "name"),
    [(CPU, KernelName.NATIVE), (L4, KernelName.TRITON), (T4, KernelName.REFERENCE), (V5E, KernelName.REFERENCE)],
)
def test_a_model_whose_tokens_look_ahead_has_a_kernel_that_can(on, name):
    choice = choose_kernel(on, HeadShape(num_kv_heads=4, head_dim=256, dtype=BFLOAT16, looks_ahead=True))
    assert choice.name is name
    assert (choice.obstacle is not None) is (name is KernelName.REFERENCE)
    if on is V5E:
        assert "no token sees positions after its own" in choice.obstacle


@pytest.mark.parametrize("kv_dtype", ["int8", "float8_e4m3fn"])
@pytest.mark.parametrize("head_dim", [64, 256])
@pytest.mark.parametrize("num_kv_heads", [1, 3, 8])
def test_a_tpu_has_a_kernel_of_its_own_for_8_bits(num_kv_heads, head_dim, kv_dtype):
    cached = np.dtype(kv_dtype)
    choice = choose_kernel(V5E, HeadShape(num_kv_heads, head_dim, BFLOAT16, cached))
    assert (choice.name, choice.obstacle, choice.page_sizes) == (KernelName.KV8, None, (128, 256))
    kernel, layout = choice.kernel(), CacheLayout(4, 128)
    assert kernel == Kv8Attention(kv_dtype)
    words, scales = kernel.initial_cache(layout, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=cached)
    heads, dim = choice.cached_kv_heads, choice.cached_head_dim
    assert (words.nbytes, scales.nbytes) == (4 * 128 * 2 * heads * dim, 4 * 128 * 2 * heads * 4)
    least = 2 if head_dim == 256 else 4  # heads of 8 bits in a word
    assert heads == -(-num_kv_heads // least) * least


@pytest.mark.parametrize(
    ("on", "heads", "part"),
    [
        (T4, HeadShape(8, 128, BFLOAT16), "Tesla T4 (compute capability 7.5)"),
        (MI300, HeadShape(8, 128, BFLOAT16), "gfx942"),
        (device("gpu"), HeadShape(8, 128, BFLOAT16), "capability unknown"),
        (L4, HeadShape(8, 576, BFLOAT16), "at most 512 dimensions, not 576"),
        (L4, HeadShape(8, 128, np.dtype("float64")), "float64"),
        (V5E, HeadShape(8, 576, BFLOAT16), "at most 512 dimensions, not 576"),
        (V5E, HeadShape(8, 256, np.dtype("float32")), "at most 128 dimensions, not 256"),
        (V5E, HeadShape(8, 128, np.dtype("float16")), "float16"),
        (V5E, HeadShape(8, 128, BFLOAT16, has_sinks=True), "sinks"),
        (V5E, HeadShape(6, 64, BFLOAT16, has_memory=True), "encoder"),
        (device("metal"), HeadShape(8, 128, BFLOAT16), "metal"),
    ],
)
def test_what_a_kernel_cannot_do_the_reference_does_and_the_reason_is_told(on, heads, part):
    choice = choose_kernel(on, heads)
    assert choice.name is KernelName.REFERENCE
    assert choice.obstacle is not None
    assert part in choice.obstacle
    assert choice.cached_head_dim == heads.head_dim
    assert type(choice.kernel()) is PagedReference


@pytest.mark.parametrize(
    ("num_kv_heads", "head_dim", "cached"),
    [(8, 128, (8, 128)), (8, 80, (8, 128)), (8, 64, (8, 64)), (3, 64, (4, 64)), (1, 64, (2, 64)), (8, 32, (8, 32))],
)
def test_a_tpu_caches_heads_in_whole_registers(num_kv_heads, head_dim, cached):
    choice = choose_kernel(V5E, HeadShape(num_kv_heads, head_dim, BFLOAT16))
    assert (choice.name, choice.cached_kv_heads, choice.cached_head_dim) == (KernelName.RAGGED, *cached)
    cache = RaggedAttention().initial_cache(LAYOUT, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=BFLOAT16)
    assert cache.shape[-1] == 128
    num_heads, dim = cached
    assert cache.size == LAYOUT.num_pages * LAYOUT.page_size * 2 * num_heads * dim


@pytest.mark.parametrize("head_dim", [192, 256])
@pytest.mark.parametrize("num_kv_heads", [1, 3, 8])
def test_a_tpu_caches_wide_heads_in_words_of_a_key_and_a_value(num_kv_heads, head_dim):
    choice = choose_kernel(V5E, HeadShape(num_kv_heads, head_dim, BFLOAT16))
    assert (choice.name, choice.obstacle, choice.page_sizes) == (KernelName.KV8, None, (128, 256))
    assert (choice.cached_head_dim, choice.cached_kv_heads) == (256, {3: 4}.get(num_kv_heads, num_kv_heads))
    (words,) = choice.kernel().initial_cache(
        CacheLayout(4, 128), num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=BFLOAT16
    )
    assert words.nbytes == 4 * 128 * 2 * choice.cached_kv_heads * 256 * 2


def is_taken(num_kv_heads, dtype):
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention.kernel import get_min_heads_per_blk

    try:
        get_min_heads_per_blk(4 * num_kv_heads, 2 * num_kv_heads, dtype, dtype)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("num_kv_heads", [*range(1, 13), 16, 20])
def test_a_tpu_caches_the_least_number_of_heads_that_its_kernel_takes(num_kv_heads, dtype):
    choice = choose_kernel(V5E, HeadShape(num_kv_heads, 128, np.dtype(dtype)))
    least = next(number for number in range(num_kv_heads, 32) if is_taken(number, dtype))
    assert (choice.name, choice.cached_kv_heads) == (KernelName.RAGGED, least)
    cache = RaggedAttention().initial_cache(LAYOUT, num_kv_heads=num_kv_heads, head_dim=128, dtype=np.dtype(dtype))
    assert cache.shape[-2] == 2 * choice.cached_kv_heads
