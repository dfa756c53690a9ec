"""The table of what fits is what a start computes, and the examples of Terraform fit their devices."""

import itertools
import re
from pathlib import Path

import pytest

from scripts.memory_table import DEVICES, GEMMA3, MODELS, fitting_shapes
from service.engine.shapes import step_pages, window_pages
from service.models.registry import read_config

ROOT = Path(__file__).parents[2]


EXAMPLES = [
    ("cloud_run_gpu/examples/l4_8b", "Llama 3.1 8B", "L4"),
    ("cloud_run_gpu/examples/l4_gemma4_e4b", "Gemma 4 E4B", "L4"),
    ("cloud_run_gpu/examples/l4_qwen3_5_4b", "Qwen3.5 4B", "L4"),
    ("cloud_run_gpu/examples/rtx_pro_6000_experts", "Qwen3 30B-A3B", "RTX PRO 6000"),
    ("cloud_run_gpu/examples/rtx_pro_6000_experts", "gpt-oss 20B", "RTX PRO 6000"),
    ("cloud_run_gpu/examples/rtx_pro_6000_gemma4_31b", "Gemma 4 31B", "RTX PRO 6000"),
    ("gke_tpu/examples/v5e_1_qwen3_5_4b", "Qwen3.5 4B", "v5e"),
    ("gke_tpu/examples/v5e_4_gemma4_26b", "Gemma 4 26B-A4B", "4 v5e"),
]


@pytest.mark.parametrize(("example", "model", "device"), EXAMPLES)
def test_the_model_of_an_example_fits_its_device(example, model, device):
    text = (ROOT / "terraform" / f"{example}.tfvars").read_text()
    slots, needed = (int(re.search(rf"^{key} += (\d+)", text, re.MULTILINE)[1]) for key in ("slots", "max_model_len"))
    assert fitting_shapes(model, device, slots).max_model_len >= needed


@pytest.mark.parametrize(("model", "context"), [("gpt-oss 20B", 131_072), ("Qwen3 30B-A3B, 4 bits", 32_768)])
def test_experts_in_4_bits_fit_an_l4_with_a_context_that_people_run_them_with(model, context):
    assert fitting_shapes(model, "L4", 16).max_model_len >= context


def test_a_model_beyond_the_memory_does_not_fit():
    assert fitting_shapes("Qwen3 32B", "L4", 16) is None
    assert fitting_shapes("Qwen3 32B", "8 v6e", 16) is not None


# Each model and each device once: a plan traces the model's weights.
ONCE = set(zip(itertools.cycle(DEVICES), MODELS, strict=False)) | set(
    zip(DEVICES, itertools.cycle(MODELS), strict=False)
)


@pytest.mark.parametrize(
    ("device", "model"),
    [
        pytest.param(device, model, marks=() if (device, model) in ONCE else pytest.mark.grid)
        for device in DEVICES
        for model in MODELS
    ],
)
def test_more_slots_leave_no_more_context_but_what_their_windows_give_up(model, device):
    few, many = (fitting_shapes(model, device, num_seqs) for num_seqs in (16, 64))
    if many is not None and many.max_model_len > few.max_model_len:
        assert sum(w.num_pages for w in many.windows) < sum(w.num_pages for w in few.windows)
        assert cached_numbers(model, many) <= cached_numbers(model, few)


def test_a_cache_in_8_bits_holds_nearly_twice_the_tokens_where_memory_is_short():
    wide, int8, fp8 = (fitting_shapes("Llama 3.1 8B", "L4", 16, kv_dtype) for kv_dtype in ("auto", "int8", "fp8"))
    assert fp8 == int8
    assert 1.7 < int8.num_pages * int8.page_size / (wide.num_pages * wide.page_size) < 2.1
    wide, int8 = (fitting_shapes("Llama 3.1 8B", "4 v5e", 16, kv_dtype) for kv_dtype in ("auto", "int8"))
    assert (wide.page_size, int8.page_size) == (16, 128)
    assert 1.7 < int8.num_pages * int8.page_size / (wide.num_pages * wide.page_size) < 2.1


def sequences_that_fit(shapes, length=8192):
    """Return how many sequences of a length fit at the same time."""
    size, step = shapes.page_size, step_pages(shapes.max_prefill_tokens, shapes.page_size)
    of_windows = ((w.num_pages - step) / window_pages(w.window, size) for w in shapes.windows)
    return min(shapes.num_pages * size / length, *of_windows)


def sequences_with_one_kind_of_cache(model, shapes, length=8192):
    """Return how many would fit into the same memory with pages for whole sequences in every layer."""
    layers = read_config(model, MODELS[model]).layers
    return cached_numbers(model, shapes) / (length * sum(map(numbers_of_a_token, layers)))


def cached_numbers(model, shapes):
    """Return how many keys, or values, all pages of all layers hold."""
    layers = filter(owns_cache, read_config(model, MODELS[model]).layers)
    pages = {None: shapes.num_pages} | {window.window: window.num_pages for window in shapes.windows}
    return sum(pages[layer.attention.window] * shapes.page_size * numbers_of_a_token(layer) for layer in layers)


def numbers_of_a_token(layer):
    return 0 if layer.attention is None else layer.attention.num_kv_heads * layer.attention.head_dim


def owns_cache(layer):
    return layer.attention is not None and not layer.attention.shares_cache


LARGE = {
    "Gemma 3 27B": GEMMA3
    | {"num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "query_pre_attn_scalar": 168}
    | {"hidden_size": 5376, "intermediate_size": 21_504, "num_hidden_layers": 62},
}


@pytest.mark.parametrize(
    ("model", "device", "times"),
    [
        ("Gemma 3 27B", "RTX PRO 6000", 3.3),
        ("Gemma 4 31B", "RTX PRO 6000", 4),
        ("gpt-oss 20B", "H100", 1.9),
        ("Gemma 4 E4B", "L4", 2.8),  # whose last layers have no cache, too
    ],
)
def test_kinds_of_caches_let_several_times_as_many_long_sequences_fit(model, device, times, monkeypatch):
    for name, config in LARGE.items():
        monkeypatch.setitem(MODELS, name, config)
    shapes = fitting_shapes(model, device, 16)
    assert sequences_that_fit(shapes) >= times * sequences_with_one_kind_of_cache(model, shapes)
