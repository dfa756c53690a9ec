"""What a decode step of a model with recurrent layers moves on a CPU: little but weights, states and live pages."""

import re

import jax
import numpy as np
import pytest

from service.compile.aot import compile_programs
from service.device.mesh import DeviceMesh
from service.device.native.library import ZEROS_TARGET, native_code
from service.engine.shapes import EngineShapes, StateShapes
from service.engine.steps.programs import engine_programs
from service.kernels.native_pages import NativePagedAttention
from service.kernels.products.linear import choose_products
from service.models.decoder import Decoder
from service.models.registry import read_config
from service.models.weight_shapes import weight_shapes
from tests.device_targets.hlo import ARRAY, num_bytes

pytestmark = pytest.mark.skipif(not native_code().has_products, reason="no native code for this processor")

NUM_PAGES, PAGE_SIZE, NUM_STATES = 24, 16, 40  # no other array has as many
LIVE_POSITIONS = 64
MOST_BYTES = 1.2  # of weights, two times the state, and what is cached of the sequence
QWEN_3_5 = {
    **{"model_type": "qwen3_5_text", "vocab_size": 96, "hidden_size": 256, "intermediate_size": 768},
    **{"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 1, "head_dim": 64},
    **{"max_position_embeddings": 512, "rms_norm_eps": 1e-6, "hidden_act": "silu", "full_attention_interval": 4},
    **{"linear_conv_kernel_dim": 4, "linear_key_head_dim": 128, "linear_value_head_dim": 128},
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "tie_word_embeddings": True},
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.25},
}
LFM2 = {
    **{"model_type": "lfm2", "vocab_size": 96, "hidden_size": 256, "intermediate_size": 768, "norm_eps": 1e-5},
    **{"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 1, "conv_L_cache": 3},
    **{"max_position_embeddings": 512, "layer_types": ["conv", "conv", "full_attention", "conv"]},
    **{"tie_word_embeddings": True, "block_auto_adjust_ff_dim": False},
}


def used_bytes(shape: str) -> float:
    """What a native call moves of an argument or a result: of states one slot, of pages those of one sequence."""
    sizes = [int(size) for size in ARRAY.findall(shape)[0][1].split(",") if size]
    if NUM_STATES in sizes:
        return num_bytes(shape) / NUM_STATES
    return num_bytes(shape) * (LIVE_POSITIONS / (NUM_PAGES * PAGE_SIZE) if NUM_PAGES in sizes else 1)


def native_bytes(text: str) -> float:
    """What the native calls of a program move."""
    total = 0.0
    for results, arguments in re.findall(r"= (.*?) custom-call\(.*?operand_layout_constraints=\{(.*?\})\}", text):
        for part in (results, arguments):
            total += sum(used_bytes(f"{dtype}[{sizes}]") for dtype, sizes in ARRAY.findall(part))
    return total


@pytest.mark.parametrize("hub_config", [QWEN_3_5, LFM2], ids=lambda config: config["model_type"])
def test_a_decode_step_moves_little_but_weights_states_and_live_pages(hub_config):
    mesh, dtype = DeviceMesh((jax.devices()[0],)), np.dtype(np.float32)
    config = read_config("test", hub_config)
    model = Decoder(config, kernel=NativePagedAttention(), products=choose_products(mesh, dtype), mesh=mesh)
    shapes = EngineShapes(
        **{"num_slots": 1, "num_pages": NUM_PAGES, "page_size": PAGE_SIZE, "max_model_len": 256, "row_tokens": 64},
        **{"max_prefill_tokens": 64, "has_sampling_variants": False, "skips_padding": True},
        states=StateShapes(NUM_STATES, 64),
    )
    specs = model.weight_specs()
    programs = engine_programs(model, shapes, weight_shapes(specs, mesh))
    steps = [program for program in programs if re.fullmatch(r"layers.*-seqs1-rows0", program.name)]
    made = [one.executable.compiled for one in compile_programs(steps, num_threads=2).values()]
    moved = sum(one.cost_analysis()["bytes accessed"] + native_bytes(one.as_text()) for one in made)
    weights = sum(spec.num_bytes for spec in specs if spec.name.startswith("layers"))
    cached = LIVE_POSITIONS * config.kv_bytes_per_token(lambda a: a.num_kv_heads * a.head_dim * dtype.itemsize)
    [initial] = compile_programs([p for p in programs if p.name == "initial-state"], num_threads=1).values()
    calls = initial.executable.compiled.as_text().count(ZEROS_TARGET)
    assert calls == len(jax.tree.leaves([model.initial_cache(shapes.layout, group) for group in model.layer_groups]))
    assert moved <= MOST_BYTES * (weights + 2 * config.state_bytes(dtype.itemsize) + cached)
